"""Sends randomly changed request bodies to a server.

    python3 tests/serve_bodies.py target/release/waterline --seed 1 --count 2000

Every answer must have a status from 200 to 499, within 20 seconds of the server's processor time, and an error must have a sentence. At the
end the server must still run, stop when it is signalled, and have used at most 1 GiB.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import signal
import subprocess
import threading
import urllib.parse

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, Anna"}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
SEEDS = [
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["."], "n": 2, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}),
    ("/v1/chat/completions", {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "1", "content": "warm"}],
                              "tools": [TOOL], "tool_choice": "auto", "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": ["Once", [1, 2, 3]], "max_tokens": 2, "echo": True, "logprobs": 1, "logit_bias": {"5": -1.5}, "suffix": None}),
    ("/v1/messages", {"system": [{"type": "text", "text": "Be brief."}], "max_tokens": 3, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
                      "tools": [{"name": "t", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/v1/messages", {"max_tokens": 3, "tools": [{"type": "web_search_20250305", "name": "w"}], "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "server_tool_use", "id": "1", "name": "w", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "1", "content": [{"type": "web_search_result", "title": "T", "url": "u"}]}]}, {"role": "user", "content": "Hi"}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, {"type": "reasoning", "summary": [], "encrypted_content": "waterline:t"},
                                 {"type": "function_call", "call_id": "1", "name": "t", "arguments": "{}"}, {"type": "function_call_output", "call_id": "1", "output": "x"}],
                       "instructions": "Be brief.", "tools": [{"type": "function", "name": "t", "parameters": SCHEMA, "strict": False}], "tool_choice": "auto", "store": False,
                       "include": ["reasoning.encrypted_content"], "truncation": "auto", "max_output_tokens": 3, "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
    ("/v1/responses", {"input": "Hi", "stream": True, "max_output_tokens": 3, "previous_response_id": None, "reasoning": {"effort": "low"}}),
    ("/api/chat", {"model": "m", "messages": MESSAGES, "tools": [TOOL], "format": "json", "think": False, "stream": False, "keep_alive": "5m", "options": {"num_predict": 3, "seed": -1, "stop": ["."]}}),
    ("/api/generate", {"model": "m", "prompt": "Hello", "system": "Be brief.", "raw": False, "format": SCHEMA, "options": {"num_predict": 3}}),
    ("/api/show", {"model": "m"}),
    ("/completion", {"prompt": ["Once", [1, 2, "x"], {"prompt_string": "a"}], "n_predict": 2, "n_probs": 2, "grammar": 'root ::= "a" | [b-c]+ root?', "logit_bias": [[5, -1.5], [6, False]], "return_progress": True}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f", "text": "t"}], "prompt": "", "n_predict": 2}),
    ("/apply-template", {"messages": MESSAGES}),
    ("/tokenize", {"content": "Hello", "add_special_tokens": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]
VALUES = [None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 1e308, -0.0, "", "\u0000", "a" * 5000, [], {}, [[[[]]]], {"a": {"a": {}}}, "\U0001f525\u0301", [0] * 500]


def places(value, found=None):
    """Returns each list and object in a value."""
    found = [] if found is None else found
    if isinstance(value, (list, dict)) and value:
        found.append(value)
        for inner in value.values() if isinstance(value, dict) else value:
            places(inner, found)
    return found


def mutated(chance):
    path, body = chance.choice(SEEDS)
    body = json.loads(json.dumps(body))
    for _ in range(chance.randrange(4)):
        place = chance.choice(places(body) or [[0]])
        key = chance.choice(list(place) if isinstance(place, dict) else list(range(len(place))))
        change = chance.randrange(4)
        if change == 0:
            del place[key]
        elif change == 1 and isinstance(place, dict):
            place[chance.choice(["", "x", "role", "content", "type", "$ref", "n", "max_tokens"])] = place[key]
        else:
            place[key] = json.loads(json.dumps(chance.choice(VALUES)))
    data = bytearray(json.dumps(body).encode())
    if chance.random() < 0.3:
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data)) if data else 0
            data[at : at + chance.choice([0, 1, 8])] = chance.choice([b"", b"\xff", b"[" * 200, b'{"', b"9" * 40, b"\\u0000", chance.randbytes(3)])
    return path, bytes(data)


def problem_of(answer):
    """The sentence of an error, which ollama's interface has in place of the object."""
    error = answer["error"]
    return error if isinstance(error, str) else error["message"]


def processor_seconds(process):
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    command = [options.program, "serve", "--port", "0", "--threads", "1", "--parallel", "2", "--chunk", "64", "--store", "32", "--context", "1024"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    line = server.stderr.readline()
    assert " at http://" in line, line
    said = []
    reader = threading.Thread(target=lambda: said.append(server.stderr.read()), daemon=True)
    reader.start()
    address = urllib.parse.urlparse(line.split(" at ")[1].strip())
    statuses, problems = {}, []
    for number in range(options.count):
        chance = random.Random(options.seed * 1_000_003 + number)
        path, data = mutated(chance)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
        begun = processor_seconds(server.pid)
        try:
            connection.request("POST", path, data)
            answer = connection.getresponse()
            content = answer.read()
            statuses[answer.status] = statuses.get(answer.status, 0) + 1
            if not 200 <= answer.status < 500 or (answer.status >= 400 and not problem_of(json.loads(content))):
                problems.append(f"{number}: {path}: {answer.status} {content[:200]} for {data[:600]}")
        except Exception as problem:
            problems.append(f"{number}: {path}: {type(problem).__name__}: {problem} for {data[:600]}")
        finally:
            connection.close()
        if server.poll() is not None:
            problems.append(f"{number}: the server has ended: {server.returncode}")
            break
        if (taken := processor_seconds(server.pid) - begun) > 20:
            problems.append(f"{number}: {path}: {taken:.0f} s for {data[:600]}")
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text() if server.poll() is None else "VmHWM: 0"
    most = int(status.split("VmHWM:")[1].split()[0]) // 1024
    if most > 1024:
        problems.append(f"it took {most} MiB")
    server.send_signal(signal.SIGTERM)
    if server.wait(60) != 0:
        problems.append(f"ended with {server.returncode}")
    reader.join(5)
    if "panicked" in "".join(said):
        problems.append("".join(said)[:600])
    for problem in problems[:10]:
        print(problem)
    print(f"seed {options.seed}, {options.count} bodies: {dict(sorted(statuses.items()))}; at most {most} MiB; {len(problems)} problems")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
