"""Checks answers, tools and renderings. The arguments are models whose templates have Hermes' format, Qwen3-Coder's format, and no way to
tell the model of tools."""

import asyncio
import importlib
import json
import sys
import typing
from typing import List, Literal, Optional

import waterline
from waterline import AnswerParser, Batch, Finish, Model, PartKind, ToolCall, _params, _tools

HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
CODER = "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n3\n</parameter>\n</function>\n</tool_call>"


def raises(exception, part, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except exception as error:
        assert part in str(error), error
        return error
    raise AssertionError(f"{call} was not refused")


seen = []


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    seen.append((a, b))
    return a + b


ADD = _tools.schema(add)
assert ADD["function"] == {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
}


def look(city: str, unit: Literal["C", "F"] = "C", days: Optional[int] = None, tags: List[str] = [], more={}) -> None:
    pass


parameters = _tools.schema(look)["function"]["parameters"]
assert parameters["required"] == ["city"] and parameters["properties"] == {
    "city": {"type": "string"},
    "unit": {"enum": ["C", "F"]},
    "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "more": {},
}


def wrong(a: complex) -> None:
    pass


raises(TypeError, "wrong: a: found the type", _tools.schema, wrong)
raises(TypeError, "*names", _tools.schema, lambda *names: None)

with Model(sys.argv[1]) as hermes, Model(sys.argv[2]) as coder, Model(sys.argv[3]) as mute, Model.builtin() as plain:
    # Byte by byte, in two formats.
    for model, text in ((hermes, HERMES), (coder, CODER)):
        with AnswerParser(model, [ADD]) as parser:
            parts = []
            for byte in f"<think>Zwei — Zahlen.</think>Ich rechne: ü\n{text}".encode():
                parts += parser.push(bytes([byte]))
            parts += parser.finish()
            message = parser.message
        assert "".join(part.text for part in parts if part.kind is PartKind.REASONING) == "Zwei — Zahlen."
        assert "".join(part.text for part in parts if part.kind is PartKind.CONTENT).strip() == "Ich rechne: ü"
        kinds = [part.kind for part in parts if part.kind >= PartKind.CALL_BEGINS]
        assert kinds[0] is PartKind.CALL_BEGINS and kinds[-1] is PartKind.CALL_ENDS and len(kinds) > 3
        assert message["content"].strip() == "Ich rechne: ü" and message["reasoning_content"] == "Zwei — Zahlen."
        assert message["tool_calls"][0]["function"]["name"] == "add"
        cut = AnswerParser(model, [ADD])
        kinds = [part.kind for part in cut.push(text[:-30]) + cut.finish(cut=True)]
        assert PartKind.CALL_BEGINS in kinds and PartKind.CALL_ENDS not in kinds
        raises(waterline.Error, "finished", cut.push, "more")

    # An answer of a session; its text, calls and thoughts, whole and in parts.
    call = f"start: {json.dumps(HERMES)}"
    with hermes.session(temperature=0) as session:
        assert session.say("Hi.", max_tokens=4).text() and session.say("Hi.", max_tokens=4).tool_calls == []
        session.tools([ADD])
        session.constrain(grammar=call)
        answer = session.say("2 + 3?")
        assert answer.text() == "" and answer.reasoning == "" and answer.finish is Finish.END
        assert answer.tool_calls == [ToolCall("add", {"a": 2, "b": 3}, answer.tool_calls[0].text, None)]
        raises(waterline.Error, "expected 1", session.results, [])
        session.results([5])
        assert session.messages[-1]["content"] == "5" and session.messages[-2]["tool_calls"][0]["function"]["name"] == "add"
        session.constrain(grammar='start: "<think>" /[a-z]{3}/ "</think>Five."')
        parts = list(session.generate().parts())
        assert [part.kind for part in parts][-1] is PartKind.CONTENT and len(parts) > 2
        session.constrain(grammar=call)
        limited = session.say("2 + 3?", max_tokens=len(hermes.tokenize(HERMES)) - 12)
        assert limited.finish is None and "".join(limited) in HERMES and limited.finish is Finish.LENGTH
        assert limited.tool_calls[0].arguments is None and limited.tool_calls[0].name == "add"

        async def waits():
            answer = session.say_async("2 + 3?")
            assert answer.tool_calls is None and await answer.text() == "" and answer.tool_calls[0].arguments == {"a": 2, "b": 3}

        asyncio.run(waits())
        answer = session.say("2 + 3?")
        with Batch(session, 1) as batch:
            while batch.generate([answer]) != [None]:
                pass
        assert answer.tool_calls[0].arguments == {"a": 2, "b": 3}

    # The loop: in a template that lists tools, and in one that does not.
    for model in (hermes, plain):
        with model.session(temperature=0) as session:
            seen.clear()

            def adds(a: int, b: int) -> int:
                session.constrain(regex="Five\\.") if seen else None
                return add(a, b)

            adds.__name__ = "add"
            session.constrain(grammar=call)
            answer = session.run("2 + 3?", [adds])
            assert seen == [(2, 3), (2, 3)] and answer.text() == "Five.", (seen, answer.text())
            assert any("5" in message["content"] for message in session.messages)
            session.constrain(grammar=call)
            seen.clear()
            assert session.run("2 + 3?", [add], most_rounds=2).tool_calls and len(seen) == 2

            def fails(a: int, b: int) -> int:
                raise KeyError("the function's own")

            fails.__name__ = "add"
            raises(KeyError, "own", session.run, "2 + 3?", [fails])
    names = {"add": add}
    assert _tools.result(names, ToolCall("add", {"a": 1}, "", None)).startswith("error: missing")
    assert _tools.result(names, ToolCall("add", None, "{", None)).startswith("error: the arguments")
    assert _tools.result(names, ToolCall("sub", {}, "", None)) == "error: there is no function sub"

    with hermes.session() as session:
        session.variable("reasoning_effort", "low")
        session.variable("reasoning_effort", None)
        raises(waterline.Error, "enable_thinking", session.variable, "enable_thinking", 7)
    # Tools that the model cannot be told of are refused.
    with mute.session() as session:
        assert raises(waterline.Error, "lists no tools", session.tools, [ADD]).status == "WL_ERROR_TEXT"
        raises(waterline.Error, "lists no tools", session.run, "2 + 3?", [add])
        assert session.say("Hi.", max_tokens=3).text() is not None
    question = [{"role": "user", "content": "Hi."}]
    assert "You can call" in plain.render(question, [ADD]) and "You can call" not in hermes.render(question, [ADD])
    assert raises(waterline.Error, "lists no tools", mute.render, question, [ADD])
    assert hermes.render(question, enable_thinking=True).endswith("<think>\n")
    assert not hermes.render(question, add_generation_prompt=False).endswith("assistant\n")
    raises(waterline.Error, "enable_thinking", hermes.render, question, enable_thinking=7)

    # A text that is no answer is content, whatever it says.
    with hermes.session(temperature=0) as session:
        session.tools([ADD])
        session.feed(hermes.tokenize("Once"))
        session.constrain(grammar=call)
        assert session.generate().text() == HERMES

    # A class with a JSON schema, as Pydantic has.
    class Person:
        @classmethod
        def model_json_schema(cls):
            return {"type": "object", "properties": {"age": {"const": 7}}, "required": ["age"], "additionalProperties": False}

    with plain.session(temperature=0) as session:
        session.constrain(schema=Person)
        assert session.say("Who?").text() == '{"age": 7}'

    assert hermes.info["end_tokens"] and hermes.info["eos"] in hermes.info["end_tokens"] and "ends" not in hermes.info
    assert hermes.info["trained_context"] is None or hermes.info["trained_context"] > 0

# Typed parameters are those that the library takes.
typing.TYPE_CHECKING = True
typed = importlib.reload(_params)
assert set(typed.SessionOptions.__annotations__) == _params._SAMPLER | _params._SESSION
assert set(typed.SamplerOptions.__annotations__) == _params._SAMPLER

print("all right")
