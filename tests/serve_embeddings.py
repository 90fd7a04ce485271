"""Vectors of `waterline serve`. Needs only Python's standard library.

    python3 tests/serve_embeddings.py target/release/waterline
"""

import base64
import concurrent.futures
import json
import struct
import subprocess
import sys
import urllib.error
import urllib.request

from serve_common import server


def post(base, path, body):
    """The status and the object of a response."""
    request = urllib.request.Request(base + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def are_close(one, other):
    return len(one) == len(other) and all(abs(a - b) < 1e-5 for a, b in zip(one, other))


def main(program):
    checked = 0

    def check(holds, what):
        nonlocal checked
        assert holds, what
        checked += 1

    texts = ["A red cat", "A blue dog sat in the sun"]
    printed = subprocess.run([program, "embed", "--pooling=mean", *texts], capture_output=True, text=True, check=True).stdout
    expected = [[float(x) for x in line.split()] for line in printed.splitlines()]
    with server(program, "--pooling=mean") as base:
        ask = lambda **body: post(base, "/v1/embeddings", body)
        status, found = ask(model="waterline", input=texts)
        vectors = [entry["embedding"] for entry in found["data"]]
        check(status == 200 and all(map(are_close, vectors, expected)), found)
        check([entry["index"] for entry in found["data"]] == [0, 1], found["data"])
        check(found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 4, found["usage"])
        check(are_close(ask(input=texts[0])[1]["data"][0]["embedding"], expected[0]), "one text")
        packed = ask(input=texts[0], encoding_format="base64")[1]["data"][0]["embedding"]
        packed = base64.b64decode(packed)
        check(are_close(struct.unpack(f"<{len(packed) // 4}f", packed), expected[0]), "base64")
        ids = post(base, "/tokenize", {"content": texts[0], "add_special": True})[1]["tokens"]
        check(are_close(ask(input=[ids, ids])[1]["data"][1]["embedding"], expected[0]), "token ids")
        status, found = ask(input=texts[0], dimensions=7)
        check(status == 400 and found["error"]["param"] == "dimensions", found)
        bad = [{}, {"input": []}, {"input": [""] * 3000}, {"input": [[-1]]}, {"input": "a", "encoding_format": "int8"}, {"input": [[]]}]
        check(all(ask(**body)[0] == 400 for body in bad), "bad requests")
        status, found = post(base, "/api/embed", {"model": "waterline", "input": texts})
        check(status == 200 and all(map(are_close, found["embeddings"], expected)), "/api/embed")
        status, found = post(base, "/api/embeddings", {"model": "waterline", "prompt": texts[0]})
        check(status == 200 and are_close(found["embedding"], expected[0]), "/api/embeddings")
        # Answers and vectors at the same time.
        asks = [lambda: ask(input=texts * 8)] * 3
        asks += [lambda: post(base, "/v1/completions", {"prompt": "Once", "max_tokens": 20, "temperature": 0})] * 3
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            results = list(pool.map(lambda ask: ask(), asks))
        check(all(status == 200 for status, _ in results), results)
        same = [[entry["embedding"] for entry in found["data"]] for _, found in results[:3]]
        check(all(are_close(vector, expected[i % 2]) for all_ in same for i, vector in enumerate(all_)), "mixed requests")
    print(f"{checked} checked")


if __name__ == "__main__":
    main(sys.argv[1])
