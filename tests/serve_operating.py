"""Operating a server: its log, /metrics, and `waterline bench --serve`. Needs only Python's standard library.

    python3 tests/serve_operating.py target/release/waterline
"""

import atexit
import csv
import http.client
import io
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

SECRET = "violet umbrella"


class Server:
    """A server whose standard output is its log."""

    def __init__(self, program, *arguments):
        command = [program, "serve", *arguments, "--port", "0", "--threads", "1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # A plain wait would hang if the server did.
        self.guard = threading.Timer(240, self.process.kill)
        self.guard.daemon = True
        atexit.register(self.process.kill)
        self.guard.start()
        said = ""
        for line in self.process.stderr:
            said += line
            if " at http://" in line:
                break
        assert " at http://" in said, said
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.url = line.split(" at ")[1].strip()
        self.address = urllib.parse.urlparse(self.url)

    def connect(self):
        return http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=120)

    def ask(self, path, body=None):
        connection = self.connect()
        try:
            connection.request("POST" if body is not None else "GET", path, body if isinstance(body, bytes) else body and json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def end(self):
        """Ends the server and returns its log."""
        self.process.send_signal(signal.SIGTERM)
        log = self.process.stdout.read()
        assert self.process.wait(60) == 0, self.process.returncode
        self.guard.cancel()
        return log


def chat(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 12, **fields}


def leave(server):
    """A client that disconnects after the first bytes of a stream."""
    connection = server.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(chat("Tell me a story.", stream=True, max_tokens=4000)))
    connection.getresponse().read1(1)
    connection.close()


def log_of_requests(program, say):
    server = Server(program, "--log=json")
    usage = json.loads(server.ask("/v1/chat/completions", chat(SECRET))[1])["usage"]
    server.ask("/v1/chat/completions", chat(SECRET))
    server.ask("/v1/completions", {"prompt": "Once", "max_tokens": 3, "stream": True})
    server.ask("/v1/completions", b"{")
    server.ask("/health?" + SECRET.replace(" ", "+"))
    leave(server)
    # The line of a client that left is written when the model has noticed it.
    time.sleep(0.5)
    log = server.end()
    assert "violet" not in log, log
    # Lines are written at the end of a request.
    lines = sorted((json.loads(line) for line in log.splitlines()), key=lambda line: line["time"])
    assert len(lines) == 6, log
    first, again, text, bad, health, left = lines
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"]), first
    assert first["client"].startswith("127.0.0.1:") and first["interface"] == "/v1/chat/completions" and first["model"] == "waterline"
    assert first["read"] + first["reused"] == usage["prompt_tokens"] and first["written"] == usage["completion_tokens"], (first, usage)
    assert 0 <= first["queue"] <= first["first"] <= first["total"] and first["status"] == 200
    assert again["reused"] == usage["prompt_tokens"] and again["read"] == 0, again
    assert text["ending"] == "length" and text["written"] == 3, text
    assert (bad["status"], bad["ending"], bad["model"], bad["written"]) == (400, "error", None, 0), bad
    assert (health["interface"], health["ending"]) == ("/health", "done"), health
    assert left["ending"] == "left" and 0 < left["written"] < 4000, left
    say("a JSON line per request")
    server = Server(program, "--log")
    server.ask("/v1/chat/completions", chat(SECRET))
    log = server.end()
    assert re.fullmatch(r"\S+Z 127\.0\.0\.1:\d+ /v1/chat/completions 200 model=waterline read=\d+ reused=0 written=\d+ "
                        r"queue=[\d.]+ first=[\d.]+ total=[\d.]+ \w+\n", log), log
    say("a text line per request")
    server = Server(program)
    server.ask("/v1/chat/completions", chat(SECRET))
    assert server.end() == ""
    say("no log without --log")
    # Nobody reads the log, so its pipe fills, and the server goes on.
    server = Server(program, "--log=json")
    connection = server.connect()
    for _ in range(4000):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
    lost = float(re.search(r"waterline_log_lines_lost_total (\d+)", server.ask("/metrics")[1].decode())[1])
    kept = len(server.end().splitlines())
    assert lost > 0 and kept + lost >= 4000, (kept, lost)
    say("a log that nobody reads")


def metrics(program, say):
    server = Server(program)
    for _ in range(3):
        server.ask("/v1/completions", {"prompt": "Once upon", "max_tokens": 5})
    # A request is counted when the model has left it, which may be after its client has its answer.
    for _ in range(100):
        page = server.ask("/metrics")[1].decode()
        if "e2e_request_latency_seconds_count 3\n" in page and "generated_tokens_total 15\n" in page:
            break
        time.sleep(0.1)
    server.end()
    value = lambda name: float(re.search(rf"^{re.escape(name)} (\S+)$", page, re.M)[1])
    for name, count in [("request_queue_time", 3), ("time_to_first_token", 3), ("inter_token_latency", 12), ("e2e_request_latency", 3)]:
        name = f"waterline_{name}_seconds"
        assert value(f"{name}_count") == value(f'{name}_bucket{{le="+Inf"}}') == count, (name, page)
        buckets = [int(n) for n in re.findall(rf"^{name}_bucket.* (\d+)$", page, re.M)]
        assert buckets == sorted(buckets) and value(f"{name}_sum") >= 0, page
    assert value("llamacpp:tokens_predicted_total") == value("waterline_generated_tokens_total") == 15, page
    assert value("llamacpp:requests_processing") == value("llamacpp:requests_deferred") == 0, page
    assert value("llamacpp:prompt_tokens_seconds") > 0 and value("llamacpp:predicted_tokens_seconds") > 0, page
    assert value("llamacpp:n_busy_slots_per_decode") == 1 and value("llamacpp:n_tokens_max") > 5, page
    names = re.findall(r"^# TYPE (\S+)", page, re.M)
    assert len(names) == len(set(names)), names
    say("histograms in /metrics")


def bench(program, say):
    server = Server(program, "--parallel", "2")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def run(*arguments, status=0):
            ran = subprocess.run([program, "bench", "--serve", *arguments], capture_output=True, text=True, timeout=200)
            assert ran.returncode == status, ran
            return ran.stdout + ran.stderr

        table = run(server.url, "--concurrency", "1,3", "--requests", "4", "--prompt", "60", "--gen", "5", "--within", "total:60000", "--json",
                    folder / "a.json", "--csv", folder / "a.csv", "--html", folder / "a.svg")
        assert "3 clients" in table and "good/s" in table, table
        results = json.loads((folder / "a.json").read_text())
        assert [result["level"] for result in results] == [{"clients": 1}, {"clients": 3}], results
        for result in results:
            assert (result["answered"], result["failed"]) == (4, 0), result
            assert 50 <= result["prompt_tokens"] / 4 <= 70 and 4 <= result["tokens"] <= 20, result
            assert 0 < result["first_token_ms"]["p50"] <= result["first_token_ms"]["p99"] <= result["total_ms"]["p99"], result
            assert result["goodput_per_s"] == result["requests_per_s"], result
        rows = list(csv.DictReader(io.StringIO((folder / "a.csv").read_text())))
        assert [row["clients"] for row in rows] == ["1", "3"] and float(rows[0]["total_p50_ms"]) > 0, rows
        assert (folder / "a.svg").read_text().startswith("<svg")
        say("bench --serve at several numbers of clients")
        bodies = folder / "bodies.jsonl"
        bodies.write_text('{"prompt": "Once", "max_tokens": 3}\n{"prompt": "The", "max_tokens": 3}\n')
        table = run(server.url + "/v1/completions", "--rate", "50", "--requests", "6", "--bodies", bodies, "--json", "-")
        [result] = json.loads(table)
        assert (result["answered"], result["tokens"], result["level"]) == (6, 18, {"rate": 50.0}), result
        say("bench --serve with a file of requests at a rate")
        bodies.write_text('{"prompt": 3}\n')
        table = run(server.url + "/v1/completions", "--requests", "2", "--bodies", bodies)
        assert "2 failed, the first with: status 400" in table, table
        assert "bodies.jsonl: line 1" in run(server.url, "--bodies", write(bodies, "{}"), status=2)
        assert "expected http://" in run("localhost:1", status=2)
        for flag in (["--threads", "3"], ["--copy"], ["--depth", "5"]):
            assert "cannot be used with" in run(server.url, *flag, status=2), flag
        assert "127.0.0.1:9" in run("http://127.0.0.1:9", status=2)
        say("errors of bench --serve")
    server.end()


def write(path, text):
    path.write_text(text)
    return path


def main():
    program, done = sys.argv[1], []

    def say(feature):
        done.append(feature)
        print(feature, file=sys.stderr)

    log_of_requests(program, say)
    metrics(program, say)
    bench(program, say)
    print(f"{len(done)} checked")


if __name__ == "__main__":
    main()
