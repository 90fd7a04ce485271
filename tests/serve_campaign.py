"""Random clients of a server of two models: requests over all interfaces, clients that disconnect, invalid bodies and slow readers, all at
once.

    python3 tests/serve_campaign.py target/release/waterline --seed 1 --count 500 [--memory MIB]

The server drafts. Its models are the built-in one and a small one with a vocabulary of its own; with a --memory that does not fit both, they
replace each other. Every complete answer must equal the answer to the same request from a server that serves nobody else, has one model and
does not draft; every invalid body must get a status of 400 or more. At the end no request may be waiting, memory must not have grown since
the first tenth, and the server must still run and stop when it is signalled.
"""

import argparse
import http.client
import json
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse

WORDS = "Anna Tom cat dog red ball sun story name number password three seven garden little once happy river".split()
BAD = [b"", b"{", b"[]", b"null", b'{"messages": "x"}', b'{"messages": []}', b'{"messages": [{"role": 3}]}', b"\xff\xfe", b"[" * 5000]
BAD_CHATS = [
    b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', b'{"messages": [{"role": "user", "content": "x"}], "n": 0}',
    b'{"messages": [' + b"0," * 300_000 + b"0]}", b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e99}', b'{"messages": [{"role": "user", "content": "x"}], "seed": "x"}',
    b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", "json_schema": {"schema": false}}}',
]


BUILTIN = pathlib.Path(__file__).parent.parent / "tools/model/waterline-chat.gguf"


class Server:
    def __init__(self, program, *more):
        command = [program, "serve", *more, "--port", "0", "--threads", "1", "--exact", "--parallel", "4", "--queue", "12", "--chunk", "64", "--store", "32"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        assert " at http://" in line, line
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.address = urllib.parse.urlparse(line.split(" at ")[1].strip())

    def connect(self):
        return http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=300)

    def ask(self, path, body):
        """Returns the status and body of one request."""
        connection = self.connect()
        try:
            method = "GET" if body is None else "POST"
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def memory(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def request(chance, models):
    """Returns a random request."""
    text = lambda most: " ".join(chance.choice(WORDS) for _ in range(chance.randrange(1, most)))
    # Only a few different beginnings, so that prompts share them.
    messages = [{"role": "user", "content": f"{WORDS[chance.randrange(4)]} " * chance.choice([1, 1, 1, 150]) + text(6)}]
    body = {"model": chance.choice(models), "temperature": chance.choice([0, 1]), "seed": chance.randrange(1000), "max_tokens": chance.randrange(1, 40)}
    if chance.random() < 0.2:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": {
            "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"], "additionalProperties": False}}}
    if chance.random() < 0.3:
        return "/v1/completions", {**body, "prompt": text(20), "logprobs": chance.randrange(3), "echo": chance.random() < 0.5}
    if chance.random() < 0.3:
        body["logprobs"], body["top_logprobs"] = True, 2
    if chance.random() < 0.2:
        body["n"] = 2
    if chance.random() < 0.2:
        body["stop"] = [chance.choice(WORDS), "."]
    path, body = "/v1/chat/completions", {**body, "messages": messages}
    return in_face(chance, path, body) if chance.random() < 0.4 else (path, body)


FACES = ["/v1/responses", "/v1/messages", "/api/chat", "/api/generate", "/completion"]


def in_face(chance, path, body):
    """Changes a chat to a request of another interface."""
    face = chance.choice(FACES)
    limit, text = body["max_tokens"], body["messages"][0]["content"]
    common = {key: body[key] for key in ("temperature", "seed", "stop") if key in body}
    common["model"] = body["model"]
    form = body.get("response_format")
    schema = form and form["json_schema"]["schema"]
    if face == "/v1/responses":
        form = {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}} if schema else {}
        return face, {**common, **form, "input": text, "max_output_tokens": limit, "store": chance.random() < 0.5}
    if face == "/v1/messages":
        form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}} if schema else {}
        return face, {**common, **form, "messages": body["messages"], "max_tokens": limit}
    if face == "/completion":
        return face, {**common, "prompt": text, "n_predict": limit, **({"json_schema": schema} if schema else {})}
    form = {"format": schema} if schema else {}
    ask = {"messages": body["messages"]} if face == "/api/chat" else {"prompt": text}
    # Some requests unload their model.
    keep = {"keep_alive": 0} if chance.random() < 0.1 else {}
    return face, {**ask, **form, **keep, "model": common.pop("model"), "stream": False, "options": {**common, "num_predict": limit}}


def outcome(answer):
    """What must equal a lone run: the answer without ids, times and the tokens that were reused."""
    answer = json.loads(answer)
    if "choices" in answer:
        return answer["choices"]
    if "output" in answer:
        return [[part["text"] for part in item["content"]] for item in answer["output"]], answer["status"]
    return [answer.get(key) for key in ("message", "response", "content", "stop_reason", "stop_sequence", "stop_type", "done_reason")]


def leaves(server, path, body, chance):
    """A client that disconnects, at once or after a few bytes, sometimes in the middle of its request."""
    data = json.dumps({**body, "stream": chance.random() < 0.5, "max_tokens": 400}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with socket.create_connection((server.address.hostname, server.address.port), timeout=60) as client:
        whole = head + data
        client.sendall(whole[: chance.choice([3, len(head), len(whole) - 1, len(whole), len(whole)])])
        client.settimeout(chance.choice([0.001, 0.05, 0.2]))
        try:
            client.recv(chance.choice([1, 200]))
        except OSError:
            pass


def streams(server, path, body, chance):
    """Reads a stream slowly and returns its text, or the texts of its choices."""
    connection = server.connect()
    try:
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        response = connection.getresponse()
        if response.status != 200:
            return response.status, None
        texts, data = {}, b""
        while piece := response.read1(64):
            data += piece
            if chance.random() < 0.05:
                time.sleep(0.02)
        if "completions" not in path:
            lines = data.decode().splitlines()
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith(("data: {", "{"))]
            return 200, "".join(map(added, events))
        events = data.decode().strip().split("\n\n")
        assert events[-1] == "data: [DONE]", events[-1]
        for event in events[:-1]:
            if event == ":":
                continue
            for choice in json.loads(event[6:])["choices"]:
                text = choice.get("text") or choice.get("delta", {}).get("content") or ""
                texts[choice["index"]] = texts.get(choice["index"], "") + text
        return 200, texts
    finally:
        connection.close()


def added(event):
    """The text that an event of an interface adds to the answer."""
    delta, message = event.get("delta"), event.get("message", {})
    if event.get("type") in ("content_block_delta", "response.output_text.delta"):
        return delta if isinstance(delta, str) else delta.get("text", "")
    text = [message.get("content"), event.get("response"), event.get("content")]
    return "".join(part for part in text if isinstance(part, str)) if "type" not in event else ""


def whole_text(outcome):
    """The text of a complete answer of an interface other than OpenAI's chat and completions."""
    if isinstance(outcome, tuple):
        return "".join(text for texts in outcome[0] for text in texts)
    message, response, content = outcome[:3]
    text = message["content"] if message else response if response is not None else content
    return text if isinstance(text, str) else "".join(block["text"] for block in text)


def text_of(choice):
    return choice.get("text") if "text" in choice else choice["message"]["content"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--clients", type=int, default=16, help="more than the places of the server's queue")
    parser.add_argument("--leave", type=float, default=0.2, help="the share of clients that disconnect")
    parser.add_argument("--growth", type=int, default=96, help="MiB by which memory may grow: both stores' 64 and a half by default; a sanitizer needs more")
    parser.add_argument("--memory", type=int, help="MiB for both models")
    options = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    paths = {"chat": pathlib.Path(folder.name) / "chat.gguf", "org/q4_0": pathlib.Path(folder.name) / "org/q4_0.gguf"}
    paths["chat"].symlink_to(BUILTIN.resolve())
    paths["org/q4_0"].parent.mkdir()
    subprocess.run([options.program, "quantize", BUILTIN, "--type", "q4_0", "--requantize", "--output", paths["org/q4_0"]], check=True, capture_output=True)
    memory = ["--memory", str(options.memory)] if options.memory else []
    server = Server(options.program, "--models-dir", folder.name, *memory, "--lookup", "8")
    lone = {name: Server(options.program, path) for name, path in paths.items()}
    answers, done, resident, problems = {}, [], [], []
    kinds = {"whole": 0, "stream": 0, "left": 0, "bad": 0, "busy": 0}

    def compare(path, body, found, of):
        status, alone = lone[body["model"]].ask(path, json.dumps(body))
        assert status == 200, alone
        expected = of(outcome(alone))
        assert found == expected, f"{body}\n{found}\n{expected}"

    def one(number):
        chance = random.Random(options.seed * 1_000_003 + number)
        path, body = request(chance, list(paths))
        kind = chance.random()
        if kind < options.leave:
            kinds["left"] += 1
            return leaves(server, path, body, chance)
        if kind < options.leave + 0.1:
            kinds["bad"] += 1
            path = chance.choice(["/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/tokenize", *FACES])
            bad = chance.choice(BAD + [b'{"model": "c"}'] + (BAD_CHATS if "chat/" in path else []))
            # Most name a model.
            bad = bad.replace(b'{"', b'{"model": "chat", "', 1) if bad[2:7] != b"model" and chance.random() < 0.8 else bad
            status, answer = server.ask(path, bad)
            if status == 503:
                kinds["busy"] += 1
                return
            # An empty list loads ollama's model.
            assert 400 <= status < 500 and json.loads(answer)["error"] or path.startswith("/api/"), (status, answer)
            return
        if chance.random() < 0.4:
            name, (status, found) = "stream", streams(server, path, body, chance)
            by_index = lambda choices: {c["index"]: text_of(c) for c in choices}
            of = by_index if "completions" in path else whole_text
        else:
            name, (status, answer) = "whole", server.ask(path, json.dumps(body))
            found = outcome(answer) if status == 200 else None
            of = lambda choices: choices
        if status == 200:
            kinds[name] += 1
            answers[number] = (path, body, found, of)
        else:
            assert status == 503, status
            kinds["busy"] += 1

    def client(place):
        for number in range(place, options.count, options.clients):
            try:
                one(number)
            except Exception as problem:
                problems.append(f"{number}: {type(problem).__name__}: {problem}")
            done.append(number)
            if len(done) in (options.count // 10, options.count * 9 // 10):
                resident.append(server.memory())

    # Loads both models before memory is measured.
    for name in paths:
        assert server.ask("/v1/completions", json.dumps({"model": name, "prompt": "a", "max_tokens": 1}))[0] == 200
    threads = [threading.Thread(target=client, args=(place,)) for place in range(options.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deadline = time.time() + 60
    waiting = lambda: "waterline_requests_waiting 0\n" in server.ask("/metrics", None)[1].decode()
    while not waiting() and time.time() < deadline:
        time.sleep(0.2)
    if not waiting():
        problems.append("requests wait for ever")
    if resident[-1] > resident[0] + options.growth:
        problems.append(f"memory grew from {resident[0]} to {resident[-1]} MiB, by more than {options.growth}")
    if server.ask("/health", None)[0] != 200:
        problems.append("not healthy")
    # While the server under test is busy, the lone servers do not take its processor time.
    for number, answer in answers.items():
        try:
            compare(*answer)
        except Exception as problem:
            problems.append(f"{number}: {problem}")
    for ended in [server.end(), *(alone.end() for alone in lone.values())]:
        if ended != 0:
            problems.append(f"ended with {ended}")
    for problem in problems[:10]:
        print(problem)
    print(f"{options.count} requests: {kinds}; memory {resident} MiB; {len(problems)} problems")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
