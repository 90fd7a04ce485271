"""What the Python package says of itself, held against it. The argument is a folder to write to."""

import gc
import sys
import threading
from pathlib import Path

import numpy
import waterline
from waterline import Device, Error, Finish, Model, plan

folder = Path(sys.argv[1])


def refused(status, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except Error as error:
        assert error.status == status, (error.status, error)
        return str(error)
    raise AssertionError(f"{call} was not refused")


gguf = Path(__file__).parents[3] / "tools/model/waterline-chat.gguf"

with Model.builtin() as model:
    assert model.info["vocab"] > 0 and model.info["has_chat_template"] and model.name
    assert model.device.startswith("CPU (no GPU: ")
    assert model.spec["vocab"] == model.info["vocab"] and model.spec["layers"]
    text = "naïve 🔥 dog\0after"
    tokens = model.tokenize(text)
    assert model.detokenize(tokens) == text.encode() and model.detokenize([]) == b"" and model.tokenize("") == []
    assert "absent" in refused("WL_ERROR_IO", Model, folder / "absent.gguf")
    assert "CUDA" in refused("WL_ERROR_UNSUPPORTED", Model.builtin, Device.CUDA)
    assert "temperature" in refused("WL_ERROR_ARGUMENT", model.session, temperature=-1)
    try:
        model.session(temprature=1)
        raise AssertionError
    except TypeError as error:
        assert "temprature" in str(error)

    # The plan of the file, before it is loaded, is that of the session.
    planned = plan(gguf, threads=1, marks=2)
    assert planned == model.plan(threads=1, marks=2)
    session = model.session(temperature=0, threads=1, marks=2, logit_bias={1: -1e9})
    assert {name: session.info[name] for name in ("state_bytes", "work_bytes")}.items() <= planned.items()

    # Logits are a view of the library's own memory, which outlives close.
    session.feed(model.tokenize("Once upon a time"))
    view = session.logits
    assert view.dtype == numpy.float32 and view.shape == (model.info["vocab"],) and not view.flags.writeable
    assert view.ctypes.data == session.logits.ctypes.data
    before, best = view.copy(), int(view.argmax())
    assert session.sample() == best and session.step() == best
    assert not (view == before).all()

    # States.
    state, path = session.state(), folder / "session.state"
    session.save(path)
    other = session.fork()
    text = "".join(session.generate(max_tokens=20))
    assert text and "".join(other.generate(max_tokens=20)) == text
    for restore, what in ((other.restore, state), (other.load, path)):
        restore(what)
        assert "".join(other.generate(max_tokens=20)) == text
    refused("WL_ERROR_STATE", other.restore, state[:-1])
    other.reset()
    assert other.position == 0 and not other.logits.any()

    # Generation is an iterator that says how it ended.
    other.restore(state)
    pieces = other.generate(max_tokens=20, stop=text[3:6])
    assert text.startswith("".join(pieces)) and pieces.finish is Finish.STOP and 0 < pieces.tokens <= 20
    other.restore(state)
    pieces = other.generate(max_tokens=3, ignore_end=True)
    assert len(list(pieces)) <= 4 and pieces.finish is Finish.LENGTH and pieces.tokens == 3

    # Cancelled from another thread.
    pieces = other.generate(max_tokens=10**6, ignore_end=True)
    next(pieces)
    thread = threading.Thread(target=other.cancel)
    thread.start()
    for _ in pieces:
        pass
    thread.join()
    assert pieces.finish is Finish.CANCELLED

    # Conversations.
    with model.session(temperature=0) as chat:
        list(chat.say("My name is Anna."))
        answer = "".join(chat.say("What is my name?"))
        assert "Anna" in answer
        assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
        chat.undo()
        assert "".join(chat.say("What is my name?")) == answer
    try:
        chat.position
        raise AssertionError
    except ValueError as error:
        assert "closed" in str(error)

    after = view.copy()
    session.close()
    gc.collect()
    assert (view == after).all()

with Model.from_bytes(gguf.read_bytes()) as model, Model(gguf) as mapped:
    assert model.info == mapped.info
refused("WL_ERROR_MODEL", Model.from_bytes, gguf.read_bytes()[:1000])
assert waterline.version().count(".") == 2
print("all right")
