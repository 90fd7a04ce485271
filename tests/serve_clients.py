"""Common clients against a running server: the packages openai, anthropic and ollama, and curl.

    python tests/serve_clients.py target/release/waterline

The built-in model answers; a lookup-table model, written here, thinks and calls tools. The keys of `FEATURES` are checked one by one, each
against a single request or the model's arithmetic.
"""

import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import tempfile

import anthropic
import ollama
import openai
from serve_common import CALLED, server, write_table

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]},
    },
}
PERSON = {
    "type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["age", "kind"], "additionalProperties": False,
}
ASK = [{"role": "user", "content": "My name is Anna. Hello!"}]


def chat_features(client, say):
    ask = lambda **fields: client.chat.completions.create(**{"model": "waterline", "messages": ASK, "temperature": 0, "max_tokens": 24, **fields})
    alone = ask()
    text = alone.choices[0].message.content
    assert "Anna" in text and alone.choices[0].finish_reason == "stop", alone
    usage = alone.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    say("chat")
    again = ask()
    assert again.choices[0].message.content == text
    assert again.usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens, again.usage
    say("cached tokens")
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens
    say("stream, stream_options")
    parts = ask(messages=[{"role": "user", "content": [{"type": "text", "text": "My name is "}, {"type": "text", "text": "Anna. Hello!"}]}])
    assert parts.choices[0].message.content == text
    say("content parts")
    cut = text.split()[2]
    stopped = ask(stop=[cut])
    assert stopped.choices[0].message.content == text[: text.index(cut)], stopped
    short = client.chat.completions.create(model="waterline", messages=ASK, temperature=0, max_completion_tokens=2)
    assert short.usage.completion_tokens == 2 and short.choices[0].finish_reason == "length", short
    say("stop, max_completion_tokens")
    wild = dict(temperature=1.5, top_p=1.0, extra_body={"top_k": 0, "min_p": 0})
    first, second, other = (ask(seed=seed, **wild).choices[0].message.content for seed in (5, 5, 6))
    assert first == second != other
    several = ask(n=3, seed=5, **wild)
    assert sorted(c.index for c in several.choices) == [0, 1, 2]
    assert [several.choices[i].message.content for i in (0, 1)] == [first, other]
    streamed = ["", "", ""]
    for chunk in ask(n=3, seed=5, stream=True, **wild):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [choice.message.content for choice in several.choices]
    say("seed, n")
    scored = ask(logprobs=True, top_logprobs=3, max_tokens=5).choices[0].logprobs.content
    assert len(scored) == 5 and all(len(t.top_logprobs) == 3 for t in scored)
    assert all(t.logprob == t.top_logprobs[0].logprob <= 0 for t in scored)
    assert text.encode().startswith(b"".join(bytes(t.bytes) for t in scored))
    say("logprobs")
    forbidden = scored[0].token
    number = tokens_of(client, forbidden)[0]
    assert not ask(logit_bias={str(number): -100}).choices[0].message.content.startswith(forbidden)
    say("logit_bias")
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    whole = ask(response_format=form, max_tokens=80)
    person = json.loads(whole.choices[0].message.content)
    assert whole.choices[0].finish_reason == "stop" and set(person) == {"age", "kind"} and person["kind"] in ("cat", "dog"), whole
    streamed = ask(response_format=form, max_tokens=80, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == whole.choices[0].message.content
    assert ask(response_format={"type": "json_object"}, max_tokens=4).choices[0].message.content.startswith("{")
    lark = ask(extra_body={"response_format": {"type": "lark", "lark": 'start: "a" ("b" | "c")'}}).choices[0].message.content
    assert lark in ("ab", "ac"), lark
    regex = ask(extra_body={"response_format": {"type": "regex", "regex": "[A-C]{3}"}}).choices[0].message.content
    assert len(regex) == 3 and set(regex) <= set("ABC"), regex
    impossible = {"type": "json_schema", "json_schema": {"name": "none", "schema": {"type": "integer", "minimum": 5, "maximum": 4}}}
    with_error(openai.BadRequestError, lambda: ask(response_format=impossible))
    say("response_format")
    follow = ASK + [{"role": "assistant", "content": text}, {"role": "user", "content": "What is my name?"}]
    followed = ask(messages=follow)
    assert "Anna" in followed.choices[0].message.content, followed
    assert followed.usage.prompt_tokens_details.cached_tokens >= usage.prompt_tokens + usage.completion_tokens - 1, followed.usage
    say("a conversation that goes on reads only what is new")
    for bad in [dict(messages=[]), dict(n=0), dict(temperature=-1), dict(top_logprobs=99, logprobs=True), dict(logit_bias={"x": 1})]:
        with_error(openai.BadRequestError, lambda: ask(**bad))
    say("refusals")


def error_of(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def with_error(kind, call):
    error_of(kind, call)


def tokens_of(client, text):
    url = str(client.base_url).replace("/v1/", "/tokenize")
    return json.loads(curl(url, {"content": text}))["tokens"]


def curl(url, body=None, *more):
    data = [] if body is None else ["-d", json.dumps(body)]
    return subprocess.run(["curl", "-sS", "--max-time", "60", url, *data, *more], check=True, capture_output=True, text=True).stdout


def completion_features(client, say):
    ask = lambda **fields: client.completions.create(**{"model": "waterline", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8, **fields})
    text = ask().choices[0].text
    assert text and "".join(c.choices[0].text for c in ask(stream=True)) == text
    say("completions")
    echoed = ask(echo=True, logprobs=1, max_tokens=1)
    found = echoed.choices[0].logprobs
    assert echoed.choices[0].text.startswith("Once upon a time") and "".join(found.tokens) == echoed.choices[0].text
    assert len(found.token_logprobs) == len(found.top_logprobs) == len(found.tokens)
    only = ask(echo=True, logprobs=1, max_tokens=0).choices[0]
    assert only.text == "Once upon a time" and only.logprobs.token_logprobs == found.token_logprobs[:-1]
    say("echo, logprobs, max_tokens 0 and 1")
    ids = tokens_of(client, "Once upon a time")
    both = ask(prompt=[ids, ids], echo=True, logprobs=2)
    first, second = (c.logprobs.token_logprobs for c in both.choices)
    assert first == second and first[0] is None and all(p < 0 for p in first[1:])
    # The scores of a prompt equal the scores of the same tokens when they are generated.
    whole = ask(prompt=ids, logprobs=0, max_tokens=4).choices[0]
    rescored = ask(prompt=ids + tokens_of(client, whole.text), echo=True, logprobs=0, max_tokens=0).choices[0].logprobs
    assert rescored.tokens[len(ids):] == whole.logprobs.tokens
    assert rescored.token_logprobs[len(ids):] == whole.logprobs.token_logprobs, (rescored, whole)
    # The common prefix of two prompts is read once.
    shots = tokens_of(client, "One day a cat sat in the sun. " * 60)
    scored = [ask(prompt=shots + tokens_of(client, end), echo=True, logprobs=1, max_tokens=1) for end in ("A dog came.", "A bird came.", "A dog came.")]
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in scored]
    assert cached[0] == 0 and cached[1] >= 256 and cached[2] >= len(shots), (cached, len(shots))
    assert scored[0].choices == scored[2].choices
    say("token ids, several prompts")


def page_features(base, say):
    assert json.loads(curl(base + "/health"))["status"] == "ok"
    assert json.loads(curl(base + "/v1/models"))["data"][0]["id"] == "waterline"
    assert json.loads(curl(base + "/v1/models/waterline"))["id"] == "waterline"
    assert json.loads(curl(base + "/tokenizer_info"))["eos_token"]
    assert "waterline_generated_tokens_total" in curl(base + "/metrics")
    ids = json.loads(curl(base + "/tokenize", {"content": "Hello, world"}))["tokens"]
    assert json.loads(curl(base + "/detokenize", {"tokens": ids}))["content"] == "Hello, world"
    say("health, models, metrics, tokenize, detokenize, tokenizer_info")
    status = lambda *more: curl(base + "/v1/models", None, "-o", "/dev/null", "-w", "%{http_code}", *more)
    assert [status(), status("-H", "Origin: http://other"), status("-H", "Host: other")] == ["200", "403", "403"]
    assert json.loads(curl(base + "/v1/chat/completions", None, "-d", "{"))["error"]["code"] == 400
    refused = json.loads(curl(base + "/v1/embeddings", {"input": "x"}))["error"]
    assert (refused["code"], refused["param"]) == ("model_not_supported", "model"), refused
    lines = curl(base + "/v1/chat/completions", {"messages": ASK, "stream": True, "max_tokens": 2}, "-N").strip().split("\n\n")
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    say("curl")


def anthropic_features(client, say):
    ask = dict(model="waterline", max_tokens=24, messages=ASK, extra_body={"temperature": 0})
    message = client.messages.create(**ask)
    assert "Anna" in message.content[0].text and message.stop_reason == "end_turn", message
    with client.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == message.content[0].text
        assert stream.get_final_message().usage.output_tokens == message.usage.output_tokens
    say("messages, streamed")
    count = client.messages.count_tokens(model="waterline", messages=ASK).input_tokens
    assert count == message.usage.input_tokens + message.usage.cache_read_input_tokens
    say("count_tokens")
    systems = [f"x-anthropic-billing-header: {i}\nYou are kind." for i in range(2)]
    usages = [client.messages.create(**ask, system=system).usage for system in systems]
    assert usages[1].cache_read_input_tokens == usages[0].input_tokens + usages[0].cache_read_input_tokens
    say("a line that changes with each request")
    formed = client.messages.create(**{**ask, "max_tokens": 80}, output_config={"format": {"type": "json_schema", "schema": PERSON}})
    assert set(json.loads(formed.content[0].text)) == {"age", "kind"}, formed
    say("output_config")
    assert client.messages.create(**{**ask, "max_tokens": 2}).stop_reason == "max_tokens"
    word = message.content[0].text.split()[1]
    stopped = client.messages.create(**ask, stop_sequences=[word])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word), stopped
    say("max_tokens, stop_sequences")
    hosted = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
    used = [{"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "tea"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "title": "Tea", "url": "u", "encrypted_content": "x"}]},
            {"type": "thinking", "thinking": "hm", "signature": "other"}, {"type": "text", "text": "Tea is warm."}]
    turns = ASK + [{"role": "assistant", "content": used}, {"role": "user", "content": "What is my name?"}]
    with_hosted = client.messages.create(**{**ask, "messages": turns}, tools=hosted)
    counted = client.messages.count_tokens(model="m", messages=turns, tools=hosted).input_tokens
    assert counted == with_hosted.usage.input_tokens + with_hosted.usage.cache_read_input_tokens
    say("hosted tools and their results")


def door_features(base, client, say):
    """Fields as clients send them, and errors as they read them."""
    chat = lambda **fields: json.loads(curl(base + "/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": 24, **fields}))
    text = lambda **fields: chat(**fields)["choices"][0]["message"]["content"]
    plain = text()
    assert text(stream=None, tools=None, n=None, stop=None, max_completion_tokens=24, unknown=[1]) == plain
    assert "differ" in chat(max_completion_tokens=3)["error"]["message"]
    assert "temperature" in chat(temperature="x")["error"]["message"]
    assert text(max_tokens=-1) == plain
    once = chat(n=3)["usage"]
    assert once["prompt_tokens"] == chat()["usage"]["prompt_tokens"], once
    ignored = chat(ignore_eos=True, max_tokens=40)
    assert ignored["usage"]["completion_tokens"] == 40 and ignored["choices"][0]["finish_reason"] == "length", ignored
    assert chat(min_tokens=40, max_tokens=40)["usage"]["completion_tokens"] == 40
    wild = dict(temperature=2, top_k=0, top_p=1, min_p=0, seed=-1)
    assert text(**wild) != text(**wild)
    say("null, duplicates, limits, ignore_eos, min_tokens, seed -1")
    choice = {"enum": ["yes"]}
    for fields in [
        {"response_format": {"type": "json_schema", "schema": choice}}, {"response_format": {"type": "json_schema", "json_schema": choice}},
        {"response_format": {"type": "json_object", "schema": choice}}, {"json_schema": choice},
    ]:
        assert text(**fields) == '"yes"', fields
    assert text(grammar='root ::= "yes" | "no"') in ("yes", "no")
    nested = text(grammar='root ::= "(" root ")" | "x"', max_tokens=60)
    assert set(nested) <= set("(x)"), nested
    assert "expected" in chat(grammar='root ::= ("a"')["error"]["message"]
    loose = {"type": "string", "format": "color-hex", "pattern": "^(?!x)a$", "enum": ["a"], "not": {"const": "b"}}
    assert text(json_schema=loose) == '"a"'
    head = curl(base + "/chat/completions", {"messages": ASK, "json_schema": loose, "max_tokens": 9}, "-D", "-")
    assert "waterline-note: " in head.lower() and "color-hex" in head, head
    assert "error" in chat(response_format={"type": "json_schema", "json_schema": {"schema": loose, "strict": True}})
    say("schemas wherever they lie, grammar, what is left to the model")
    for path in ("/health", "/v1/models", "/models", "/"):
        assert curl(base + path, None, "-I", "-o", "/dev/null", "-w", "%{http_code}") == "200", path
    preflight = curl(base + "/v1/chat/completions", None, "-X", "OPTIONS", "-D", "-", "-H", "Origin: app://a", "-H", "Access-Control-Request-Headers: x-a")
    assert " 204 " in preflight and "access-control-allow-headers: x-a" in preflight.lower(), preflight
    assert "access-control-allow-origin: app://a" in curl(base + "/health", None, "-D", "-", "-H", "Origin: app://a").lower()
    refused = curl(base + "/health", None, "-H", "Origin: http://other")
    assert "--allow-origin" in refused, refused
    say("HEAD, --allow-origin")
    progress = curl(base + "/v1/chat/completions", {"messages": [{"role": "user", "content": "tea " * 30}], "stream": True, "max_tokens": 1, "return_progress": True})
    assert '"prompt_progress"' in progress, progress
    say("return_progress")


def responses_features(client, say):
    ask = lambda **fields: client.responses.create(**{"model": "m", "input": "My name is Anna. Hello!", "temperature": 0, "max_output_tokens": 24, **fields})
    whole = ask()
    assert "Anna" in whole.output_text and whole.status == "completed", whole
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    events = list(ask(stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert events[-1].response.output_text == whole.output_text
    followed = ask(input="What is my name?", previous_response_id=whole.id)
    assert followed.id[:20] != whole.id[:20], "an id can be guessed"
    assert "Anna" in followed.output_text and followed.usage.input_tokens_details.cached_tokens > 0, followed
    form = {"format": {"type": "json_schema", "name": "p", "schema": PERSON, "strict": True}}
    assert set(json.loads(ask(text=form, max_output_tokens=80).output_text)) == {"age", "kind"}
    assert ask(max_output_tokens=2).incomplete_details.reason == "max_output_tokens"
    found = error_of(openai.BadRequestError, lambda: ask(previous_response_id="resp_none"))
    assert found.code == "previous_response_not_found", found
    say("responses")


def ollama_features(base, say):
    client = ollama.Client(host=base)
    ask = dict(model="waterline", messages=ASK, options={"temperature": 0, "num_predict": 24})
    whole = client.chat(**ask)
    assert "Anna" in whole.message.content and whole.done_reason == "stop" and whole.eval_count > 0, whole
    chunks = list(client.chat(**ask, stream=True))
    assert "".join(chunk.message.content for chunk in chunks) == whole.message.content and chunks[-1].done
    assert json.loads(client.chat(model="m", messages=ASK, format=PERSON).message.content)["kind"] in ("cat", "dog")
    assert client.generate(model="m", prompt="Once upon a time", raw=True, options={"num_predict": 4, "temperature": 0}).response
    assert client.list().models[0].model == "waterline" and client.ps().models and "completion" in client.show("m").capabilities
    found = error_of(ollama.ResponseError, lambda: client.chat(model="m", messages=ASK, options={"temperature": -1}))
    assert found.status_code == 400 and found.error.startswith("temperature"), found
    say("ollama")


def native_features(base, say):
    body = {"prompt": "Once upon a time", "n_predict": 8, "temperature": 0}
    whole = json.loads(curl(base + "/completion", body))
    assert whole["stop"] is True and whole["stop_type"] == "limit" and whole["tokens_predicted"] == 8, whole
    lines = [json.loads(line[6:]) for line in curl(base + "/completion", {**body, "stream": True}).split("\n") if line]
    assert "".join(line["content"] for line in lines) == whole["content"] and lines[-1]["stop"]
    word = whole["content"].split()[-1]
    assert json.loads(curl(base + "/completion", {**body, "stop": [word]}))["stopping_word"] == word
    assert len(json.loads(curl(base + "/completion", {**body, "n_probs": 2}))["completion_probabilities"][0]["top_logprobs"]) == 2
    assert json.loads(curl(base + "/props"))["total_slots"] == 4 and len(json.loads(curl(base + "/slots"))) == 4
    assert "Hello!" in json.loads(curl(base + "/apply-template", {"messages": ASK}))["prompt"]
    assert "gap" in json.loads(curl(base + "/infill", {"input_prefix": "a", "input_suffix": "b"}))["error"]["message"]
    pieces = json.loads(curl(base + "/tokenize", {"content": "Hello, you", "with_pieces": True}))["tokens"]
    assert "".join(piece["piece"] for piece in pieces) == "Hello, you", pieces
    assert "llamacpp:prompt_tokens_total" in curl(base + "/metrics")
    say("llama.cpp's own paths")


def full_contexts(program, folder, say):
    with server(program, folder, "--context", "64") as base:
        chats, messages = openai.OpenAI(base_url=base + "/v1", api_key="none"), anthropic.Anthropic(base_url=base, api_key="none")
        long = [{"role": "user", "content": "tea " * 200}]
        found = error_of(openai.BadRequestError, lambda: chats.chat.completions.create(model="m", messages=long))
        assert found.code == "context_length_exceeded" and "maximum context length is 64 tokens" in str(found), found
        found = str(error_of(anthropic.BadRequestError, lambda: messages.messages.create(model="m", max_tokens=9, messages=long)))
        assert "prompt is too long: " in found and "tokens > 64 maximum" in found, found
        turns = [*long, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "x"}]
        assert chats.responses.create(model="m", input=turns, truncation="auto", max_output_tokens=4).output_text == "Hi"
        with_error(openai.BadRequestError, lambda: chats.responses.create(model="m", input=turns))
    say("a full context")


def tool_features(base, say):
    client = openai.OpenAI(base_url=base + "/v1", api_key="secret")
    with_error(openai.AuthenticationError, lambda: openai.OpenAI(base_url=base + "/v1", api_key="wrong").models.list())
    say("keys")
    ask = lambda **fields: client.chat.completions.create(**{"model": "table", "messages": ASK, "temperature": 0, **fields})
    assert ask().choices[0].message.content == "Hi"
    whole = ask(tools=[WEATHER]).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None, whole
    call = whole.message.tool_calls[0]
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == CALLED
    found = [c.choices[0].delta.tool_calls for c in ask(tools=[WEATHER], stream=True) if c.choices[0].delta.tool_calls]
    assert json.loads("".join(part.function.arguments for calls in found for part in calls)) == CALLED
    answered = ask(tools=[WEATHER], messages=ASK + [whole.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sun"}])
    assert answered.choices[0].message.content == "Hi", answered
    assert ask(tools=[WEATHER], tool_choice="none").choices[0].message.content == "Hi"
    say("tools, tool messages, tool_choice none")
    strict = json.loads(json.dumps(WEATHER))
    strict["function"]["strict"] = True
    strict["function"]["parameters"].update(properties={"city": {"enum": ["Oslo"]}}, additionalProperties=False)
    # After a tool's message the model answers "Hi".
    told = ASK + [whole.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    forced = ask(tools=[strict], messages=told, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert forced.finish_reason == "tool_calls" and forced.message.tool_calls[0].function.name == "get_weather", forced
    note = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
    named = ask(tools=[WEATHER, note], tool_choice={"type": "function", "function": {"name": "note"}}).choices[0].message
    assert [(c.function.name, c.function.arguments) for c in named.tool_calls] == [("note", "{}")], named
    call = ask(tools=[strict]).choices[0].message.tool_calls[0].function
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"}), call
    assert ask(tools=[strict], messages=told).choices[0].message.content == "Hi"
    with_error(openai.BadRequestError, lambda: ask(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "other"}}))
    say("tool_choice required and named, strict tools")
    thinking = dict(extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    thought = ask(tools=[WEATHER], **thinking).choices[0].message
    assert thought.reasoning_content == "hm" and thought.tool_calls and not thought.content, thought
    deltas = [c.choices[0].delta for c in ask(tools=[WEATHER], stream=True, **thinking)]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "hm"
    say("reasoning_content")
    yes = {"type": "json_schema", "json_schema": {"name": "yes", "schema": {"enum": ["yes"]}}}
    formed = ask(response_format=yes, **thinking).choices[0].message
    assert (formed.reasoning_content, formed.content) == ("hm", '"yes"'), formed
    say("response_format after a thought")
    client = anthropic.Anthropic(base_url=base, api_key="secret")
    tools = [{"name": "get_weather", "description": "", "input_schema": WEATHER["function"]["parameters"]}]
    ask = dict(model="table", max_tokens=99, tools=tools, messages=ASK, extra_body={"temperature": 0})
    message = client.messages.create(**ask, thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.type for block in message.content] == ["thinking", "tool_use"], message
    assert message.stop_reason == "tool_use" and message.content[1].input == CALLED
    with client.messages.stream(**ask) as stream:
        message = stream.get_final_message()
    assert message.content[0].input == CALLED, message
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "sun"}
    turns = [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    message = client.messages.create(**{**ask, "messages": ASK + turns})
    assert message.content[0].text == "Hi", message
    for choice, name in [({"type": "any"}, "get_weather"), ({"type": "tool", "name": "note"}, "note")]:
        more = {"name": "note", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
        forced = client.messages.create(**{**ask, "tools": tools + [more] if name == "note" else tools}, tool_choice=choice)
        assert [block.name for block in forced.content] == [name], forced
    say("tools of messages, tool_choice")
    responses = openai.OpenAI(base_url=base + "/v1", api_key="secret").responses
    function = {"type": "function", **WEATHER["function"], "strict": False}
    # As Codex sends it: thoughts come back with the next request, and hosted tools are listed.
    ask = dict(model="table", input=ASK, tools=[function, {"type": "web_search"}], temperature=0, store=False, include=["reasoning.encrypted_content"],
               instructions="Be brief.", extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    whole = responses.create(**ask)
    assert [item.type for item in whole.output] == ["reasoning", "function_call"], whole
    assert json.loads(whole.output[1].arguments) == CALLED and whole.output[0].encrypted_content
    streamed = [event for event in responses.create(**ask, stream=True)]
    assert "".join(e.delta for e in streamed if e.type == "response.function_call_arguments.delta") == whole.output[1].arguments
    output = {"type": "function_call_output", "call_id": whole.output[1].call_id, "output": "sun"}
    told = responses.create(**{**ask, "input": ASK + [item.model_dump(exclude_none=True) for item in whole.output] + [output], "extra_body": {}})
    assert told.output_text == "Hi", told
    say("tools of responses")
    client = ollama.Client(host=base, headers={"Authorization": "bearer secret"})
    called = client.chat(model="table", messages=ASK, tools=[WEATHER], think=True)
    assert called.message.thinking == "hm" and called.message.tool_calls[0].function.arguments == CALLED, called
    told = client.chat(model="table", tools=[WEATHER], messages=ASK + [called.message, {"role": "tool", "tool_name": "get_weather", "content": "sun"}])
    assert told.message.content == "Hi", told
    say("tools of ollama")


def refusals_by_limits(program, say):
    """A server without places in its queue, which accepts only small bodies."""
    with server(program, "--queue", "0", "--max-body", "2000", "--max-messages", "2", "--timeout", "5", "--allow-host", "other") as base:
        chat = lambda messages, *more: curl(base + "/v1/chat/completions", {"messages": messages, "max_tokens": 2}, *more)
        head, _, body = chat(ASK, "-D", "-").partition("\n\n")
        assert " 503 " in head and "retry-after: 1" in head.lower() and "queue" in body, (head, body)
        with_error(openai.InternalServerError, lambda: openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0).chat.completions.create(model="x", messages=ASK))
        busy = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
        with_error(anthropic.APIStatusError, lambda: busy.messages.create(model="x", max_tokens=2, messages=ASK))
        assert json.loads(chat(ASK * 3))["error"]["message"] == "messages: expected 1 to 2 of them"
        assert json.loads(chat([{"role": "user", "content": "x" * 3000}]))["error"]["code"] == 413
        host = curl(base + "/health", None, "-H", "Host: other:80")
        assert json.loads(host)["status"] == "ok", host
        assert "waterline_requests_refused_total 5\n" in curl(base + "/metrics")
    say("503 with Retry-After, limits, --allow-host")


def talk_with_tools(program, folder, say):
    """`waterline chat` on a terminal: a command runs only after the person agrees."""
    command = [program, "chat", folder, "--private", "--temp", "0", "--threads", "1", "--tool", "get_weather=cat; echo ' and sun'"]
    for agreed in "yn":
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(command[0], command)
        seen = b""

        def until(text):
            nonlocal seen
            while text not in seen:
                assert select.select([terminal], [], [], 60)[0], seen
                seen += os.read(terminal, 4096)

        try:
            until(b"> ")
            os.write(terminal, b"Hello\r")
            until(b"y or n")
            os.write(terminal, agreed.encode() + b"\r")
            until(b"Hi")
            os.write(terminal, b"/quit\r")
        finally:
            os.close(terminal)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert b"get_weather" in seen and b"Paris" in seen, seen
    say("chat --tool")


def main(program):
    checked = []
    # With --exact no bit depends on whether tokens were read in chunks, in steps or in a batch.
    with server(program, "--exact", "--allow-origin", "app://a") as base:
        client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == ["waterline"]
        chat_features(client, checked.append)
        completion_features(client, checked.append)
        page_features(base, checked.append)
        anthropic_features(anthropic.Anthropic(base_url=base, api_key="none", max_retries=0), checked.append)
        door_features(base, client, checked.append)
        responses_features(client, checked.append)
        ollama_features(base, checked.append)
        native_features(base, checked.append)
    with tempfile.TemporaryDirectory() as folder:
        write_table(pathlib.Path(folder))
        with server(program, folder, "--alias", "table", "--api-key", "secret") as base:
            tool_features(base, checked.append)
        full_contexts(program, folder, checked.append)
        refusals_by_limits(program, checked.append)
        talk_with_tools(program, folder, checked.append)
    print(f"{len(checked)} checked: {'; '.join(checked)}")


if __name__ == "__main__":
    main(sys.argv[1])
