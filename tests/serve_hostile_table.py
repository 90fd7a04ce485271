"""The table of hostile requests: rows of (name, method, path, body, statuses that are right). A body is bytes, or a value that becomes JSON.
`{ROWS}` is the size of the test model's vocabulary."""

import json

from serve_common import ROWS

OK, BAD, EITHER = {200}, {400}, {200, 400}
CHAT, TEXT, MESSAGES, COUNT = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "Hi"}]


def chat(**fields):
    return {"messages": HI, "max_tokens": 4, **fields}


def text(**fields):
    return {"prompt": "Hi", "max_tokens": 4, **fields}


def token_ids():
    known = [1, 2, 3]
    for bad in [ROWS, ROWS + 1, 65_536, 2**31 - 1, 2**31, 2**32 - 1]:
        for echo, logprobs in [(True, 1), (True, 20), (True, None), (False, 2), (False, None)]:
            for prompt in [known + [bad], [bad], [1] * 512 + [bad], [known, [bad]], [bad] + known]:
                yield TEXT, text(prompt=prompt, echo=echo, logprobs=logprobs, max_tokens=1), BAD
        yield "/detokenize", {"tokens": [72, bad]}, BAD
        for path, make in [(CHAT, chat), (TEXT, text), (MESSAGES, chat)]:
            yield path, make(logit_bias={str(bad): -5}), EITHER if path == MESSAGES else BAD
    for bad in [2**32, 2**64, -1, 1.5, "1", None, True, [], {}]:
        # A prompt may mix tokens and texts, as llama.cpp's may.
        yield TEXT, text(prompt=[1, bad], echo=True, logprobs=1), {200} if bad == "1" else BAD
        yield "/detokenize", {"tokens": [bad]}, BAD
    for key in ["-1", "1.5", "x", "", "4294967296", " 1", "1e3", "٣"]:
        yield CHAT, chat(logit_bias={key: 1}), BAD


def parameters():
    numbers = [1e-45, -1e-45, 1e-6, -3e38, 3e38, 1e300, -1e300, -1, 0, 1e9, 2.5, 10**30, -(2**63), 2**64]
    others = [True, "1", [], {}, "nan", "inf"]
    names = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "repeat_penalty",
             "seed", "n", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs"]
    for number, name in enumerate(names):
        for place, value in enumerate(numbers + others):
            path, make = [(CHAT, chat), (TEXT, text)][(number + place) % 2]
            yield path, make(**{name: value}), EITHER
    for value in [1e10, -3e38, 3e38, 1e300, "x", None]:
        yield CHAT, chat(logit_bias={"1": value}), BAD
    for value in [1e-45, -3e38, 3e38]:
        for name in ["repetition_penalty", "frequency_penalty", "presence_penalty"][: 1 if value == 1e-45 else 3]:
            yield TEXT, text(prompt="aaaa", **{name: value}), BAD


def answers():
    """Numbers of answers and log-probabilities on interfaces that give one answer, and none."""
    for number in [-1, 0, 10**6, 2**40, 2**63, "x"]:
        yield MESSAGES, chat(n=number, logprobs=number), OK
        yield "/api/chat", chat(n=number, stream=False, options={"n": number, "num_predict": 4}), OK
        yield "/api/generate", text(n=number, stream=False, options={"num_predict": 4}), OK
        yield "/v1/responses", {"input": "Hi", "max_output_tokens": 4, "n": number, "logprobs": number}, OK
        yield TEXT, text(logprobs=True, top_logprobs=number), OK


def chain(name, rules, sep='"a"'):
    return "start: %s0\n" % name + "".join("%s%d: %s%d %s\n" % (name, i, name, i + 1, sep) for i in range(rules)) + '%s%d: "b"\n' % (name, rules)


def larks():
    for rules in [100, 659, 700, 5000, 20_000]:
        for name in ["r", "T"]:
            yield chain(name, rules)
    yield "start: " + "(" * 99 + '"a"' + ")" * 99
    yield "start: " + "(" * 5000
    yield "\n".join("r%d: " % i + "(" * 60 + '"a"' + ")" * 60 for i in range(300))
    for count in [5, 14, 30, 100]:
        yield "start: T\nT: " + " & ".join("/[a-z]*x%d[a-z]*/" % i for i in range(count))
        yield "start: r\nr: " + " | ".join(" ".join(["r"] * k) for k in range(2, count)) + ' | "a"'
    for count in [1000, 100_000]:
        yield "start: " + " | ".join('"w%d"' % i for i in range(count))
        yield "start: " + '"a"? ' * count
    yield "start: r0\n" + "".join("r%d: r%d r%d |\n" % (i, i + 1, i + 1) for i in range(300)) + 'r300: "b" |\n'
    yield 'start: "a"{1000000000}'
    yield "start: T\nT: /(a{1,1000}){1,1000}/"
    yield "start: %json " + json.dumps({"multipleOf": 1_000_003})
    yield "start: %json " + json.dumps(required(7000))
    yield "start: start"
    yield "start: <[0-4294967295]>"
    yield "%llguidance {}\nstart: @x"
    yield "\0"
    yield ""


def required(count):
    return {"type": "object", "required": ["r%d" % i for i in range(count)]}


def nested(value, count):
    for _ in range(count):
        value = {"type": "array", "items": value}
    return value


def references(count):
    defined = {"d%d" % i: {"type": "object", "properties": {"x": {"$ref": "#/$defs/d%d" % (i + 1)}}} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**defined, "d%d" % count: {"type": "integer"}}}


def schemas():
    for count in [100, 1000, 7000, 40_000]:
        yield required(count)
        yield {"type": "object", "properties": {"a%d" % i: {} for i in range(count)}}
        yield {"type": "array", "prefixItems": [{}] * count, "items": False}
        yield {"anyOf": [{"const": "c%d" % i} for i in range(count)]}
        yield {"enum": ["v%d" % i for i in range(count)]}
    for count in [100, 1000, 3000]:
        yield references(count)
        yield {"allOf": [{"properties": {"c%d" % i: {"type": "string"}}} for i in range(count)]}
    for count in [5, 12, 20, 60]:
        yield {"allOf": [{"type": "string", "pattern": "x%d" % i} for i in range(count)]}
        yield {"allOf": [{"properties": {"a": {"type": "string", "pattern": "x%d" % i}}} for i in range(count)], "required": ["a"]}
    for count in [10, 100, 1000]:
        yield {"type": "object", "patternProperties": {"^x%dy" % i: {} for i in range(count)}}
    for multiple in [7, 1e-9, 4099, 1_000_003, 1e300]:
        yield {"type": "number", "multipleOf": multiple}
    yield {"allOf": [{"type": "integer", "multipleOf": prime} for prime in [2, 3, 5, 7, 11, 13, 17, 19]]}
    for length in [100, 100_000, 2**40]:
        yield {"type": "string", "minLength": length, "maxLength": 2 * length}
        yield {"type": "array", "items": {"type": "string"}, "minItems": length, "maxItems": 2 * length}
    for depth in [50, 100, 10_000 // 200]:
        yield nested({}, depth)
    yield {"$ref": "#"}
    yield {"$ref": "http://127.0.0.1:1/schema"}
    yield {"$ref": "file:///etc/passwd"}
    yield {"type": "string", "pattern": "(a*)*" * 50 + "("}
    yield {"type": "string", "pattern": "(\\w{1,1000}x){1,1000}"}
    yield False
    yield 3


def regexes():
    yield from ["(" * 5000, "a{1,1000000}", "(a{1,1000}){1,1000}", "a?" * 5000, "(a|b)*a(a|b){1000}", "\\p{L}{1000}", "(?=a)b", "(", "[", "\\"]
    yield "|".join("w%d" % i for i in range(50_000))


def grammars():
    for lark in larks():
        yield CHAT, chat(response_format={"type": "lark", "lark": lark}), EITHER
    for schema in schemas():
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        yield CHAT, chat(response_format=form), EITHER
        yield MESSAGES, chat(output_config={"format": {"type": "json_schema", "schema": schema}}), EITHER
        for choice in ["required", {"type": "function", "function": {"name": "f"}}, "auto"]:
            function = {"name": "f", "strict": True, "parameters": schema}
            yield CHAT, chat(tools=[{"type": "function", "function": function}], tool_choice=choice), EITHER
        tool = {"name": "f", "input_schema": schema}
        yield MESSAGES, chat(tools=[tool], tool_choice={"type": "any"}), EITHER
    for regex in regexes():
        yield CHAT, chat(response_format={"type": "regex", "regex": regex}), EITHER


def sizes():
    million = [72] * 1_000_000
    yield TEXT, text(prompt=million, echo=True, n=128, max_tokens=0), BAD
    yield TEXT, text(prompt=million, echo=True, logprobs=20, max_tokens=0), BAD
    yield TEXT, text(prompt=[[72] * 1000] * 1000, echo=True, n=128, max_tokens=0), BAD
    yield TEXT, text(n=128, logprobs=20, max_tokens=10**9), BAD
    yield CHAT, chat(n=128, logprobs=True, top_logprobs=20, max_tokens=10**9), BAD
    long = "x" * 15_000_000
    for path, make in [(CHAT, chat), (TEXT, text), (MESSAGES, chat)]:
        name = "stop_sequences" if path == MESSAGES else "stop"
        yield path, make(**{name: [long], "n": 1}), BAD
        yield path, make(**{name: [str(i) for i in range(65)]}), BAD
    yield CHAT, chat(stop=long, n=64), BAD
    for _ in range(4):
        yield "/tokenize", {"content": long}, {200, 503}
    yield CHAT, {"messages": [{"role": "user", "content": long}], "max_tokens": 1}, {400, 503}
    yield COUNT, {"messages": [{"role": "user", "content": long[:4_000_000]}]}, {200, 503}
    yield TEXT, text(prompt=long[:8_000_000]), {400, 503}
    yield TEXT, text(prompt=["a"] * 1025), BAD
    yield TEXT, text(prompt=[]), BAD
    yield TEXT, text(prompt=""), EITHER
    yield CHAT, chat(n=129), BAD
    yield CHAT, {"messages": HI * 5000}, BAD
    yield CHAT, {"messages": []}, BAD
    yield CHAT, chat(tools=[{"type": "function", "function": {"name": "f%d" % i, "parameters": {}}} for i in range(3000)], tool_choice="required"), EITHER
    yield CHAT, b"[" * 1_000_000, BAD
    yield CHAT, b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", BAD
    yield CHAT, b'{"a":' * 50_000, BAD
    yield CHAT, b"[" + b"0," * 4_000_000 + b"0]", BAD
    yield "/detokenize", {"tokens": [72] * 1_000_001}, {200, 400}
    yield CHAT, b"x" * (16 * 1024 * 1024 + 1), {413}


def bodies():
    for path in [CHAT, TEXT, MESSAGES, COUNT, "/tokenize", "/detokenize", "/v1/embeddings"]:
        for body in [b"", b"{", b"null", b"[]", b"3", b'"x"', b"\xff\xfe", b"{}", b'{"messages":null,"prompt":null,"content":null,"tokens":null}', b"\0" * 100]:
            # No tokens are no text, as with llama.cpp's server.
            yield path, body, EITHER if path == "/detokenize" and body.startswith(b"{") else BAD
    for role in ["", "x", "tool", "developer", "assistant", "<|im_start|>", 3, None, "a" * 100_000]:
        for content in ["\0", "\ud800x".encode("utf-8", "surrogatepass").decode("latin-1"), None, [], [{"type": "image_url", "image_url": {"url": "x"}}], 3, {"a": 1}, ["a"]]:
            yield CHAT, {"messages": [{"role": role, "content": content}], "max_tokens": 1}, EITHER
    for call in [True, -1, [[]], {"function": 3}, {"function": {"name": "f", "arguments": "{" * 1000}}, {"function": {"name": "<|im_end|>", "arguments": "{}"}}]:
        yield CHAT, {"messages": HI + [{"role": "assistant", "tool_calls": [call]}] + HI, "max_tokens": 1}, EITHER


def rows():
    for make in [token_ids, parameters, answers, grammars, bodies, sizes]:
        for number, (path, body, statuses) in enumerate(make()):
            yield "%s %d" % (make.__name__, number), "POST", path, body, statuses
    for number, (method, path, status) in enumerate([
        ("GET", "/health", 200), ("GET", "/", 200), ("GET", "/v1/models", 200), ("GET", "/metrics", 200), ("GET", "/tokenizer_info", 200),
        ("POST", "/health", 405), ("PUT", "/v1/chat/completions", 405), ("GET", "/nothing", 404), ("GET", "/v1/models/%00", 404),
        ("BREW", "/", 405), ("GET", "/" + "x" * 8000, 404),
    ]):
        yield "routes %d" % number, method, path, b"x" * 100_000 if method == "GET" else b"", {status}
