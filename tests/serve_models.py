"""A server of several models: loading, unloading within --memory, names, lists, and equal answers. Needs only Python's standard library.

    python3 tests/serve_models.py target/release/waterline
"""

import concurrent.futures
import json
import pathlib
import sys
import tempfile
import time

from serve_common import write_table
from serve_operating import Server

# In MiB: org/chat and one of the others fit, or both others.
MEMORY = "52"
BUILTIN = pathlib.Path(__file__).parent.parent / "tools/model/waterline-chat.gguf"
STORY = {"messages": [{"role": "user", "content": "Tell me a story about a dog."}], "temperature": 0, "max_tokens": 300}


def models(folder):
    """Four models: two that answer "q" with their letter, the built-in one below a folder, and a broken file."""
    for name, letter in [("a", "x"), ("b", "z")]:
        (folder / name).mkdir()
        write_table(folder / name, letter)
    (folder / "org").mkdir()
    (folder / "org/chat.gguf").symlink_to(BUILTIN.resolve())
    (folder / "broken.gguf").write_text("GGUF")
    (folder / "notes.txt").write_text("no model")


def letter(model):
    return {"model": model, "prompt": "q", "max_tokens": 1, "temperature": 0}


class Client:
    def __init__(self, server):
        self.server = server

    def status(self):
        cards = json.loads(self.server.ask("/v1/models")[1])["data"]
        return {card["id"]: card["status"]["value"] for card in cards}

    def loaded(self):
        return sorted(name for name, status in self.status().items() if status == "loaded")

    def text(self, body, path="/v1/completions"):
        status, answer = self.server.ask(path, body)
        assert status == 200, answer
        [choice] = json.loads(answer)["choices"]
        return choice["text"] if "text" in choice else choice["message"]["content"]

    def error(self, path, body):
        status, answer = self.server.ask(path, body)
        return status, json.loads(answer)["error"]

    def stream(self, body, begun):
        """The text of a streamed chat; `begun` is called after its first part."""
        connection = self.server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}))
        response, data = connection.getresponse(), b""
        assert response.status == 200, response.read()
        while part := response.read1(256):
            if not data:
                begun()
            data += part
        events = [event for event in data.decode().strip().split("\n\n") if event != ":"]
        assert events[-1] == "data: [DONE]", events[-1]
        deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events[:-1]]
        return "".join(delta.get("content") or "" for delta in deltas)

    def wait(self, is_so):
        for _ in range(300):
            if is_so():
                return
            time.sleep(0.1)
        raise AssertionError(self.status())


def names_and_lists(client, say):
    server = client.server
    assert client.status() == dict.fromkeys(["a", "b", "broken", "org/chat"], "unloaded"), client.status()
    assert json.loads(server.ask("/api/ps")[1])["models"] == []
    assert client.text(letter("a")) == "x" and client.loaded() == ["a"]
    assert client.text(letter("b:latest")) == "z" and client.loaded() == ["a", "b"]
    tags = json.loads(server.ask("/api/tags")[1])["models"]
    assert [model["name"] for model in tags] == ["a", "b", "broken", "org/chat"] and all(model["size"] for model in tags), tags
    running = json.loads(server.ask("/api/ps")[1])["models"]
    assert [(model["name"], model["context_length"]) for model in running] == [("a", 8192), ("b", 8192)], running
    assert json.loads(server.ask("/v1/models/b")[1])["max_model_len"] == 8192
    assert json.loads(server.ask("/v1/models/org%2Fchat")[1])["status"]["value"] == "unloaded"
    assert "waterline_models_loaded 2\n" in server.ask("/metrics")[1].decode()
    say("lists of several models")
    assert json.loads(server.ask("/props?model=a")[1])["model_alias"] == "a"
    assert json.loads(server.ask("/tokenize", {"model": "a", "content": "abc"})[1])["count"] == 3
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/completion"):
        status, error = client.error(path, {"model": "c", "prompt": "q", "messages": []})
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model") and "a, b, broken, org/chat" in error["message"], error
    status, error = client.error("/v1/messages", {"model": "c", "messages": [], "max_tokens": 1})
    assert (status, error["type"]) == (404, "not_found_error"), error
    status, error = client.error("/api/chat", {"model": "../a", "messages": []})
    assert status == 404 and "not found" in error, error
    assert server.ask("/v1/models/c")[0] == 404
    status, error = client.error("/v1/completions", {"prompt": "q"})
    assert status == 400 and "expected one of" in error["message"], error
    assert server.ask("/props")[0] == 400 and server.ask("/v1/completions", b"{")[0] == 400
    assert server.ask("/v1/completions", {"model": 3})[0] == 400
    status, error = client.error("/v1/completions", letter("broken"))
    assert status == 500 and '"broken"' in error["message"], error
    assert client.loaded() == ["a", "b"] and client.text(letter("a")) == "x"
    say("names that are unknown and files that are broken")


def room(client, alone, say):
    # b was not used for longest.
    assert client.loaded() == ["a", "b"]
    chat = {**STORY, "model": "org/chat"}
    assert client.text(chat, "/v1/chat/completions") == alone
    assert client.loaded() == ["a", "org/chat"]
    say("the model that was not used for longest is unloaded")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        others = []

        def begun():
            # a and b replace each other while the chat answers, although it is the one not used for longest.
            for name, expected in [("a", "x"), ("b", "z"), ("a", "x")]:
                others.append(pool.submit(lambda name=name: client.text(letter(name))))
                assert client.server.ask("/health")[0] == 200
                assert others[-1].result() == expected
            assert client.loaded() == ["a", "org/chat"]

        assert client.stream(chat, begun) == alone
        assert len(others) == 3
        say("a stream goes on while others are loaded")
        waiting = []

        def both():
            long = {**letter("a"), "max_tokens": 3000, "ignore_eos": True}
            waiting.append(pool.submit(lambda: client.text(long)))
            time.sleep(0.05)
            waiting.append(pool.submit(lambda: client.text(letter("b"))))

        # b waits until one of the two models that answer has ended.
        assert client.stream(chat, both) == alone
        # Every other token ends an answer and has no text.
        assert (len(waiting[0].result()), waiting[1].result()) == (1500, "z")
        say("a model waits until another has answered")
        names = ["a", "b", "org/chat", "a", "b"] * 8
        ask = lambda name: client.text({**letter(name), "prompt": "q"})
        expected = {"a": "x", "b": "z", "org/chat": client.text(letter("org/chat"))}
        assert list(pool.map(ask, names)) == [expected[name] for name in names]
        assert len(client.loaded()) <= 2, client.loaded()
        say("models that replace each other")


def keep_alive(client, say):
    ask = lambda **fields: json.loads(client.server.ask("/api/chat", {"model": "a", "messages": [], "stream": False, **fields})[1])
    assert ask()["done_reason"] == "load" and "a" in client.loaded()
    assert ask(keep_alive=0)["done_reason"] == "unload"
    client.wait(lambda: "a" not in client.loaded())
    hello = [{"role": "user", "content": "q"}]
    assert ask(messages=hello, keep_alive="0s")["message"]["content"] == "Hi"
    client.wait(lambda: "a" not in client.loaded())
    assert ask(messages=hello)["message"]["content"] == "Hi" and "a" in client.loaded()
    say("keep_alive")


def main():
    program, done = sys.argv[1], []

    def say(feature):
        done.append(feature)
        print(feature, file=sys.stderr)

    server = Server(program)
    alone = Client(server).text(STORY, "/v1/chat/completions")
    server.end()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        models(folder)
        flags = ["--models-dir", folder, "--store", "8", "--parallel", "2", "--context", "8192"]
        server = Server(program, *flags, "--memory", MEMORY)
        client = Client(server)
        names_and_lists(client, say)
        room(client, alone, say)
        keep_alive(client, say)
        server.end()
        server = Server(program, *flags, "--memory", "1")
        status, error = Client(server).error("/v1/completions", letter("org/chat"))
        assert status == 500 and "--memory" in error["message"], error
        server.end()
        say("a model that can never fit")
    print(f"{len(done)} checked")


if __name__ == "__main__":
    main()
