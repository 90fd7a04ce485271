"""Measures the time that a server adds to decoding, the latency of a known prefix, and the speed of eight clients.

    python3 tools/reference/serve_speed.py target/release/waterline --threads 1 [MODEL]

The same texts with `waterline run` and with a server, interleaved; medians. A long prompt is sent repeatedly, and the time to its first
token is measured. Eight clients at once are compared with `run --samples 8`.
"""

import argparse
import concurrent.futures
import http.client
import json
import statistics
import subprocess
import threading
import time

BEGINNINGS = ["Once upon a time", "The king said", "In the garden", "My dear friend,"]
TOKENS = 200


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    model = [options.model] if options.model else []
    flags = ["--threads", options.threads, "--device", options.device, "--temp", "0"]
    command = [options.program, "serve", *model, *flags, "--port", "0", "--parallel", "8"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if " at http://" in line:
            break
    threading.Thread(target=server.stderr.read, daemon=True).start()
    host = line.split("http://")[1].strip()

    def stream(prompt, tokens):
        """Returns the seconds to the first token, the seconds after it, and the number of tokens after it."""
        connection = http.client.HTTPConnection(host, timeout=600)
        begun, times = time.perf_counter(), []
        body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body))
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                usage = json.loads(line[6:]).get("usage") or {}
        connection.close()
        return times[0] - begun, times[-1] - times[0], usage["completion_tokens"] - 1

    def run(prompt, *more):
        command = [options.program, "run", "--raw", "--json", *model, *flags, "-n", str(TOKENS), *more, prompt]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    try:
        ratios, alone = [], []
        for _ in range(options.rounds):
            for prompt in BEGINNINGS:
                expected = run(prompt)["ms_per_token"]
                _, seconds, tokens = stream(prompt, TOKENS)
                alone.append(1e3 * seconds / tokens)
                ratios.append(alone[-1] / expected)
        print(f"one client: {statistics.median(alone):.3f} ms a token, {statistics.median(ratios):.3f} times that of run")
        long = " ".join(f"{i} little birds and a cat went to the river." for i in range(150))
        first = stream(long, 8)[0]
        again = [stream(long, 8)[0] for _ in range(20)]
        print(f"a long prompt: {1e3 * first:.0f} ms to its first token, again {1e3 * statistics.median(again):.1f} ms (at most {1e3 * max(again):.1f})")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            rates = []
            for _ in range(options.rounds):
                begun = time.perf_counter()
                answers = list(pool.map(lambda i: stream(BEGINNINGS[i % 4], TOKENS), range(8)))
                rates.append(sum(tokens + 1 for *_, tokens in answers) / (time.perf_counter() - begun))
        print(f"eight clients: {statistics.median(rates):.0f} tokens/s")
        begun = time.perf_counter()
        samples = run(BEGINNINGS[0], "--samples", "8")["samples"]
        seconds = time.perf_counter() - begun
        print(f"run --samples 8, with its start: {sum(sample['tokens'] for sample in samples) / seconds:.0f} tokens/s")
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
