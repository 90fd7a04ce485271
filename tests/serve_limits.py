"""Waiting, signals, drafts, private prefixes, omitted fields and damaged weights of `waterline serve`, as runtime/docs/serve.md and security.md state them.
Needs only Python's standard library.

    python3 tests/serve_limits.py target/release/waterline
"""

import json
import pathlib
import re
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

from serve_common import write_table
from serve_operating import Server

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
# An answer that goes on until its client leaves.
ENDLESS = {"prompt": "Once", "stream": True, "ignore_eos": True, "max_tokens": -1}
PATIENCE, SILENCE = 30, 10


class Reader(threading.Thread):
    """A client that counts the events of a stream."""

    def __init__(self, server, body):
        super().__init__(daemon=True)
        self.connection = server.connect()
        self.connection.request("POST", "/v1/completions", json.dumps(body))
        self.socket = self.connection.sock
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()
        self.count, self.last = 0, b""
        self.start()

    def run(self):
        try:
            for line in self.response:
                self.count, self.last = self.count + line.startswith(b"data: {"), line.strip() or self.last
        except (OSError, ValueError, AttributeError):
            pass  # The client left, or the server ended.

    def begun(self):
        while self.count < 2:
            time.sleep(0.01)
        return self

    def leave(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.join()


def value(server, name):
    page = server.ask("/metrics")[1].decode()
    return float(re.search(rf"^waterline_{name} (\S+)$", page, re.M)[1])


def connect(server):
    return socket.create_connection((server.address.hostname, server.address.port), 4 * PATIENCE)


def sockets(server):
    """The number of the server's open sockets."""
    files = pathlib.Path(f"/proc/{server.process.pid}/fd")
    return sum(str(file.readlink()).startswith("socket:") for file in files.iterdir())


def patience(program, say):
    """A client has a time limit for its headers, for its body and for reading; a stream that waits says so."""
    server = Server(program, "--parallel", "1", "--max-tokens", "-1")
    before = sockets(server)
    head, body, reads = connect(server), connect(server), socket.socket()
    reads.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reads.connect((server.address.hostname, server.address.port))
    begun = time.monotonic()
    reads.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
    head.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
    body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    first = Reader(server, ENDLESS).begun()
    second = connect(server)
    text = json.dumps({"prompt": "Once", "stream": True, "max_tokens": 1}).encode()
    second.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
    asked, seen = time.monotonic(), b""
    while b":\n\n" not in seen:
        seen += second.recv(4096)
    assert b"data:" not in seen and time.monotonic() - asked >= SILENCE - 1, seen
    first.leave()
    while b"[DONE]" not in seen:
        seen += second.recv(4096)
    say("a stream that waits sends comments")
    answer = body.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"in time" in answer, answer
    assert b"200 OK" not in head.recv(4096)
    assert time.monotonic() - begun >= PATIENCE - 1
    say("time limits of headers and of a body")
    for connection in (head, body, second):
        connection.close()
    while sockets(server) > before and time.monotonic() < begun + 4 * PATIENCE:
        time.sleep(0.1)
    assert sockets(server) == before, "a client that reads nothing keeps its connection"
    assert time.monotonic() - begun >= PATIENCE - 1
    reads.close()
    server.end()
    say("a time limit of reading")


def steps(program, say):
    """Running answers step once after each chunk of a prompt; a lone answer drafts."""
    server = Server(program, "--parallel", "2", "--chunk", "64", "--max-tokens", "-1")
    running = Reader(server, ENDLESS).begun()
    chunks = 64
    tokens = [7 + i * i % 300 for i in range(64 * chunks)]
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": tokens, "stream": True, "max_tokens": 1, "return_progress": True}))
    reported = []
    for line in connection.getresponse():
        if b"prompt_progress" in line:
            reported.append(running.count)
    running.leave()
    between = reported[-1] - reported[0]
    # The clients' threads may see a few tokens early or late.
    assert len(reported) >= chunks and abs(between - len(reported)) < chunks / 4, (between, len(reported))
    server.end()
    say("a step after each chunk")
    for arguments, drafts in [([], False), (["--lookup", "8"], True)]:
        server = Server(program, *arguments)
        server.ask("/v1/completions", {"prompt": "red ball blue ball " * 8, "max_tokens": 200, "ignore_eos": True, "temperature": 0})
        while value(server, "answers_total") < 1:
            time.sleep(0.05)
        taken, generated = value(server, "steps_total"), value(server, "generated_tokens_total")
        assert generated == 200 and (taken < 200) == drafts, (taken, generated)
        server.end()
    say("drafts of a lone answer")


def signals(program, say):
    """The first signal lets answers finish, the second ends the process."""
    server = Server(program)
    running = Reader(server, {**ENDLESS, "max_tokens": 400}).begun()
    server.process.send_signal(signal.SIGTERM)
    running.join(60)
    assert server.process.wait(60) == 0 and running.last == b"data: [DONE]" and running.count > 300, (running.last, running.count)
    try:
        connect(server)
        raise AssertionError("it accepts connections after its end")
    except ConnectionError:
        pass
    server = Server(program, "--max-tokens", "-1")
    running = Reader(server, ENDLESS).begun()
    server.process.send_signal(signal.SIGINT)
    at, deadline = running.count, time.monotonic() + 60
    while running.count < at + 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running.count >= at + 20 and server.process.poll() is None
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 130
    say("signals")


def private_cache(program, say):
    """The prefixes of a user that `metadata.user_id` names are that user's alone."""
    server = Server(program, "--private-cache")

    def reused(user):
        body = {"messages": [{"role": "user", "content": "red ball " * 100}], "max_tokens": 1, "metadata": {"user_id": user}}
        status, answer = server.ask("/v1/messages", body)
        assert status == 200, answer
        return json.loads(answer)["usage"]["cache_read_input_tokens"]

    assert [reused("a") > 0, reused("b") > 0, reused("a") > 0, reused("b") > 0] == [False, False, True, True]
    server.end()
    say("private prefixes by metadata.user_id")


def left_out(program, say):
    """What an interface leaves out is ignored, noted or refused, and what is noted is named in a header."""
    server = Server(program)
    chat = {"messages": HI, "max_tokens": 1}
    part = lambda kind: [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": kind}]}]
    ignored = [
        ("/v1/chat/completions", {**chat, "service_tier": "flex", "user": "u", "modalities": ["text"]}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "best_of": 3}),
        ("/v1/messages", {**chat, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}]}),
        ("/completion", {"prompt": "Hi", "n_predict": 1, "samplers": ["top_k"], "return_tokens": True, "lora": [], "id_slot": 3}),
    ]
    for path, body in ignored:
        status, answer = server.ask(path, body)
        assert status == 200, (path, answer)
    assert json.loads(answer)["tokens"] == [], answer
    noted = [
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 1, "tools": [{"type": "web_search"}]}, "web_search"),
        ("/v1/messages", {**chat, "tools": [{"type": "web_search_20250305", "name": "search"}]}, "search"),
        ("/api/chat", {**chat, "stream": False, "template": "x", "context": [1]}, "template is left out; context is left out"),
        ("/api/generate", {"prompt": "Hi", "raw": True, "stream": False, "context": [1], "options": {"num_predict": 1}}, "context is left out"),
        ("/v1/chat/completions", {**chat, "json_schema": {"enum": ["a"], "not": {"const": "b"}}}, "not"),
    ]
    for path, body, note in noted:
        connection = server.connect()
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        found = response.headers.get("waterline-note", "")
        assert response.status == 200 and note in found, (path, response.status, found)
    refused = [
        ("/v1/chat/completions", {**chat, "messages": part("image_url")}, 400), ("/v1/chat/completions", {**chat, "messages": part("input_audio")}, 400),
        ("/v1/messages", {**chat, "messages": part("image")}, 400), ("/api/chat", {"messages": [{**HI[0], "images": ["AA=="]}]}, 400),
        ("/v1/responses", {"input": "Hi", "background": True}, 400), ("/v1/responses", {"input": "Hi", "conversation": "c"}, 400),
        ("/v1/responses", {"prompt": {"id": "p"}}, 400), ("/v1/responses/resp_1", None, 404), ("/v1/responses", None, 405),
        ("/v1/messages/batches", {}, 404), ("/api/pull", {"model": "x"}, 404),
        ("/slots/0?action=save", {}, 404), ("/lora-adapters", None, 404), ("/rerank", {}, 404),
    ]
    for path, body, expected in refused:
        status, answer = server.ask(path, body)
        assert status == expected and json.loads(answer)["error"], (path, status, answer)
    server.end()
    say("fields that interfaces leave out")


def damaged(program, say):
    """Weights without finite logits are the model's fault: each answer is an error that says so, and the server goes on."""
    with tempfile.TemporaryDirectory() as folder:
        write_table(pathlib.Path(folder))
        path = pathlib.Path(folder) / "model.safetensors"
        file = bytearray(path.read_bytes())
        start = 8 + struct.unpack_from("<Q", file)[0]
        first, last = json.loads(file[8:start])["lm_head.weight"]["data_offsets"]
        file[start + first : start + last] = struct.pack("<f", float("nan")) * ((last - first) // 4)
        path.write_bytes(file)
        server = Server(program, folder)
        for body in [{"messages": HI}, {"messages": HI, "temperature": 0, "logprobs": True}]:
            status, answer = server.ask("/v1/chat/completions", body)
            assert status == 500 and "weights" in json.loads(answer)["error"]["message"], (status, answer)
            assert server.ask("/health")[0] == 200
        server.end()
    say("damaged weights")


def main():
    program, done = sys.argv[1], []

    def say(feature):
        done.append(feature)
        print(feature, file=sys.stderr)

    # Its waits take no processor time, so the other checks run meanwhile.
    failures = []

    def waits():
        try:
            patience(program, say)
        except BaseException as error:
            failures.append(error)

    waiting = threading.Thread(target=waits)
    waiting.start()
    steps(program, say)
    signals(program, say)
    private_cache(program, say)
    left_out(program, say)
    damaged(program, say)
    waiting.join()
    if failures:
        raise failures[0]
    print(f"{len(done)} checked")


if __name__ == "__main__":
    main()
