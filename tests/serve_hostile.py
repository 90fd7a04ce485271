"""Sends the table of hostile requests to `waterline serve` while honest clients are served: `serve_hostile.py PROGRAM [SEED [COUNT]]`.

Every status is one that the table allows, never 500 or above but 503; the honest answers and `/health` stay as they were; the server's peak
memory stays within 512 MB of the model's. Prints the longest times. Standard library only."""

import contextlib
import http.client
import json
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serve_common import server_process, write_table
from serve_hostile_table import rows

MEMORY = 512 << 20
# No request may take longer; the table's limits are far below.
HANGS = 100
CLIENTS = 6


class Server:
    def __init__(self, address, process):
        self.host, port = address.removeprefix("http://").rsplit(":", 1)
        self.port, self.process = int(port), process

    def send(self, method, path, body=b"", headers={}):
        """Returns status and body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=HANGS)
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path, fields):
        status, body = self.send("POST", path, json.dumps(fields).encode())
        return status, json.loads(body)

    def memory(self, name):
        for line in pathlib.Path("/proc/%d/status" % self.process.pid).read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
        raise AssertionError(name)


def honest(server, number):
    """One answer of an honest client: text and token counts, without times."""
    if number % 2:
        status, answer = server.post("/v1/completions", {"prompt": "tell me %d" % (number % 8), "temperature": 0, "max_tokens": 24})
        return status, answer.get("choices", answer)
    status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi %d" % (number % 8)}], "temperature": 0})
    return status, answer.get("choices", answer)


class Watch(threading.Thread):
    """Repeats a check until it is stopped. Keeps the first failure and the longest time."""

    def __init__(self, check, pause):
        super().__init__(daemon=True)
        self.check, self.pause, self.stop = check, pause, threading.Event()
        self.failure, self.longest, self.count = None, 0.0, 0

    def run(self):
        while not self.stop.is_set() and self.failure is None:
            begun = time.monotonic()
            try:
                self.check(self.count)
            except Exception as error:
                self.failure = "%s after %.1f s" % (repr(error)[:500], time.monotonic() - begun)
            self.longest = max(self.longest, time.monotonic() - begun)
            self.count += 1
            self.stop.wait(self.pause)

    def end(self):
        self.stop.set()
        self.join(HANGS)
        assert self.failure is None, self.failure
        assert not self.is_alive()


@contextlib.contextmanager
def watched(server):
    expected = [honest(server, number) for number in range(8)]
    assert all(status == 200 for status, _ in expected), expected

    def answers(number):
        found = honest(server, number)
        # A full queue is an answer too; the client would try again.
        assert found[0] == 503 or found == expected[number % 8], (found, expected[number % 8])

    def health(_):
        status, body = server.send("GET", "/health")
        assert status == 200, (status, body)

    watches = Watch(answers, 0.05), Watch(health, 0.02)
    for watch in watches:
        watch.start()
    yield watches
    for watch in watches:
        watch.end()
    assert [honest(server, number) for number in range(8)] == expected


def send_table(server, table):
    """Sends the rows on a few threads. Returns failures and times."""
    waiting, failures, times, lock = list(table), [], [], threading.Lock()

    def work():
        while True:
            with lock:
                if not waiting:
                    return
                name, method, path, body, statuses = waiting.pop()
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            begun = time.monotonic()
            try:
                status, answer = server.send(method, path, raw)
                right = status in statuses or status == 503
                error = None if right else "%d %s" % (status, answer[:300])
                if right and b"panic" in answer:
                    error = "a panic's text: %s" % answer[:300]
            except ConnectionError as failed:
                # The server may refuse a long body before it is sent.
                error = None if len(raw) > 60_000 else repr(failed)
            except OSError as failed:
                error = repr(failed)
            seconds = time.monotonic() - begun
            with lock:
                times.append((seconds, name))
                if error:
                    failures.append("%s %s %s: %s (%.1f s)" % (name, path, raw[:100], error, seconds))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(CLIENTS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return failures, times


def hold(server, payload, count, source="127.0.0.1"):
    """Opens connections that send the payload and never read."""
    held = []
    for _ in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            connection.bind((source, 0))
            connection.settimeout(2)
            connection.connect((server.host, server.port))
            connection.setblocking(False)
            connection.send(payload)
        held.append(connection)
    return held


def eventually(send):
    """Sends until the server has room for a connection, far less long than its time limits. Returns the status."""
    status = None
    for _ in range(40):
        with contextlib.suppress(OSError):
            status = send()
        if status == 200:
            break
        time.sleep(0.25)
    return status


def check_connections(server):
    """Connections whose clients never read, or never finish a head or a body, lock nobody out."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    payloads = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300,
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300,
        b"",
        b"GET /health HTTP/1.1\r\nHost: local",
        head,
        head + b"x" * 70_000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ]
    for payload in payloads:
        held = hold(server, payload, 1024)
        # A connection gives way to a new one once it has waited for a moment; until then new ones get 503 or nothing.
        for number in range(4):
            assert eventually(lambda: server.send("GET", "/health")[0]) == 200, payload[:60]
            assert eventually(lambda: honest(server, number)[0]) == 200, payload[:60]
        for connection in held:
            connection.close()


def check_doors(program, model):
    """A body is read only where a route needs one and after the key; hosts, origins and settings are checked."""
    with server_process(program, str(model), "--api-key", "secret", "--host", "0.0.0.0") as started:
        server = Server(*started)
        server.host = "127.0.0.1"
        long = {"Content-Length": str(10 << 20)}
        for method, path, status in [("POST", "/v1/chat/completions", 401), ("GET", "/metrics", 401), ("GET", "/health", 200), ("GET", "/", 200)]:
            with socket.create_connection((server.host, server.port), HANGS) as connection:
                request = "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n" % (method, path, long["Content-Length"])
                connection.sendall(request.encode())
                assert int(connection.recv(100).split()[1]) == status, path
        key = {"Authorization": "Bearer secret"}
        rebound = {**key, "Host": "evil.example:%d" % server.port}
        for headers, status in [
            ({**rebound, "Origin": "http://evil.example:%d" % server.port}, 403), ({**rebound, "Sec-Fetch-Site": "same-origin"}, 403),
            (rebound, 200), ({**key, "Origin": "http://evil.example"}, 403), (key, 200), ({"Authorization": "Bearer "}, 401), ({}, 401),
        ]:
            assert server.send("GET", "/v1/models", headers=headers)[0] == status, headers
    for arguments in [("--api-key", ""), ("--timeout", str(2**63)), ("--timeout", "0")]:
        refused = subprocess.run([program, "serve", str(model), *arguments], capture_output=True, timeout=HANGS)
        assert refused.returncode == 2, (arguments, refused)


def check_caches(program, model):
    """With --private-cache a user's requests reuse only that user's; with --exact no answer's tokens stand in for a text's own."""
    with server_process(program, str(model), "--private-cache") as started:
        server = Server(*started)
        routes = [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 300}]}, "prompt_cache_key"),
            ("/v1/completions", {"prompt": "y" * 600}, "user"),
            ("/v1/completions", {"prompt": "z" * 600, "echo": True, "logprobs": 1}, "user"),
        ]
        for path, fields, name in routes:
            def cached(user):
                status, answer = server.post(path, {**fields, "max_tokens": 1, **({name: user} if user else {})})
                assert status == 200, answer
                return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

            assert [cached("a") > 0, cached("b") > 0, cached(None) > 0, cached(None) > 0] == [False] * 4, fields
            assert cached("a") > 0 and cached("b") > 0, fields
    counts = {}
    for arguments in [(), ("--exact",)]:
        said = []
        with server_process(program, *arguments) as started:
            server = Server(*started)
            ask = [{"role": "user", "content": "Tell me a story"}]
            for seed in range(12):
                fields = {"messages": ask, "seed": seed, "temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 30}
                said.append(server.post("/v1/chat/completions", fields)[1]["choices"][0]["message"]["content"])

            def lengths(server):
                histories = [ask + [{"role": "assistant", "content": text}] + ask for text in said]
                fields = [{"messages": history, "max_tokens": 1} for history in histories]
                return [server.post("/v1/chat/completions", each)[1]["usage"]["prompt_tokens"] for each in fields]

            known = lengths(server)
        with server_process(program, *arguments) as started:
            counts[arguments] = sum(a != b for a, b in zip(known, lengths(Server(*started))))
    assert counts[()] > 0 and counts[("--exact",)] == 0, counts


def run(program, seed=None, count=None):
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model"
        model.mkdir()
        write_table(model)
        arguments = ["--timeout", "60", "--queue", "256", "--max-tokens", "4096"]
        table = list(rows())
        random.Random(seed or 0).shuffle(table)
        table = table[:count]
        with server_process(program, str(model), *arguments, seconds=900) as started:
            one = Server(*started)
            honest(one, 0), honest(one, 1)
            before = one.memory("VmRSS")
            with watched(one) as watches:
                begun = time.monotonic()
                failures, times = send_table(one, table)
                assert not failures, "%d of %d:\n%s" % (len(failures), len(table), "\n".join(failures[:40]))
                seconds = time.monotonic() - begun
            check_connections(one)
            peak = one.memory("VmHWM") - before
            assert peak < MEMORY, "%d MB over the model's" % (peak >> 20)
        check_doors(program, model)
        check_caches(program, model)
        slowest = max(times)
        print("%d requests in %.0f s: the slowest %.2f s (%s), /health at most %.0f ms of %d, honest answers at most %.2f s of %d, %d MB" % (
            len(table), seconds, slowest[0], slowest[1], 1e3 * watches[1].longest, watches[1].count, watches[0].longest, watches[0].count, peak >> 20))


if __name__ == "__main__":
    run(sys.argv[1], *map(int, sys.argv[2:4]))
