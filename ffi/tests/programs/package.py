"""Checks the Python package against its documentation. The argument is a folder to write to."""

import asyncio
import gc
import shutil
import signal
import sys
import threading
from pathlib import Path

import numpy
import waterline
from waterline import Batch, Device, Error, FileError, Finish, Model, OnFull, Pooling, Store, plan

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
    try:
        Model(folder / "absent.gguf")
    except FileNotFoundError as error:
        assert isinstance(error, FileError) and error.errno == 2 and "absent" in str(error)
    assert "CUDA" in refused("WL_ERROR_UNSUPPORTED", Model.builtin, Device.CUDA)
    assert "temperature" in refused("WL_ERROR_ARGUMENT", model.session, temperature=-1)
    def raises(exception, part, call, *arguments, **named):
        try:
            call(*arguments, **named)
        except exception as error:
            assert part in str(error), error
        else:
            raise AssertionError(f"{call} was not refused")

    # Unknown names and numbers that C would truncate are rejected everywhere, with the caller's names.
    with model.session(temperature=0) as any_session:
        raises(TypeError, "temprature", model.session, temprature=1)
        raises(TypeError, "threds", model.plan, threds=1)
        raises(TypeError, "temprature", any_session.set_sampler, temprature=1)
        raises(TypeError, "max_token", any_session.generate, max_token=1)
        raises(TypeError, "max_token", any_session.say, "Hi.", max_token=1)
        raises(ValueError, "max_tokens: found -5", any_session.say, "Hi.", max_tokens=-5)
        raises(ValueError, "threads: found -1", model.session, threads=-1)
        raises(ValueError, "7", Model.builtin, 7)
        assert "Device.CUDA" in refused("WL_ERROR_ARGUMENT", Model.builtin, Device.CPU, 1)
        list(any_session.say("Hi.", max_tokens=2))
        assert "undo" in refused("WL_ERROR_REWIND", any_session.rewind, 0)

    # The sampler is read back; parameters that are not given stay; without a seed each session draws a different one.
    with model.session(top_k=3) as one, model.session() as two:
        assert one.sampler["seed"] != two.sampler["seed"]
        # Printed as people write it, not as the 64-bit value of a 32-bit float.
        assert two.sampler["top_p"] == 0.95 and str(Finish.END) == "Finish.END"
        one.set_sampler(logit_bias={5: -1.5}, seed=7)
        one.set_sampler(temperature=0.25)
        expected = {"top_k": 3, "temperature": 0.25, "seed": 7, "logit_bias": {5: -1.5}}
        assert expected.items() <= one.sampler.items()

    # The context of the built-in model is never full, but the parameters are checked.
    raises(ValueError, "keep: found -1", model.session, on_full=OnFull.SHIFT, keep=-1)
    assert "on_full" in refused("WL_ERROR_ARGUMENT", model.session, on_full=3)
    model.session(on_full=OnFull.COMPACT, keep=9).close()

    # Vectors of texts: the built-in model states no pooling.
    with model.session(temperature=0) as reader:
        text = model.embed_tokenize("A red cat")
        assert text[-3:] == model.tokenize("A red cat")[-3:]
        assert "pooling" in refused("WL_ERROR_ARGUMENT", reader.embed, text)
        assert "task" in refused("WL_ERROR_ARGUMENT", model.embed_tokenize, "A", "query")
        assert "dimensions" in refused("WL_ERROR_ARGUMENT", reader.embed, text, pooling=Pooling.MEAN, dimensions=3)
        vector = list(reader.embed(text, pooling=Pooling.MEAN))
        assert abs(sum(x * x for x in vector) - 1) < 1e-5 and vector == list(reader.embed(text, pooling=Pooling.MEAN))
        plain = list(reader.embed(text, pooling=Pooling.LAST, normalize=False))
        assert len(plain) == len(vector) and reader.position == 0
        raises(TypeError, "pool", reader.embed, text, pool=1)

    # The progress of a prompt, and a callback that cancels.
    with model.session(chunk=4, temperature=0) as slow:
        seen = []
        slow.on_progress(lambda read, total: seen.append((read, total)))
        slow.feed(range(1, 11))
        assert seen == [(4, 10), (8, 10), (10, 10)]
        slow.on_progress(lambda read, total: False)
        refused("WL_CANCELLED", slow.feed, range(10))
        slow.on_progress(None)
        slow.feed([1])

        # Ctrl-C and exceptions of the progress callback stop the reading after a chunk. A program in the background starts with the signal
        # ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        slow.reset()
        slow.on_progress(lambda read, total: signal.raise_signal(signal.SIGINT))
        raises(KeyboardInterrupt, "", slow.feed, range(1, 11))
        assert slow.position == 4
        slow.on_progress(lambda read, total: 1 // 0)
        raises(ZeroDivisionError, "zero", slow.feed, range(10))
        slow.on_progress(None)
        slow.feed([1])

    # A complete history at once; a history that grew is read only from its new part.
    with model.session(temperature=0) as told:
        history = [
            {"role": "user", "content": "My name is Anna."},
            {"role": "assistant", "content": "Nice to meet you, Anna!"},
            {"role": "user", "content": "What is my name?"},
        ]
        pieces = told.say(history)
        answer = "".join(pieces)
        assert "Anna" in answer and pieces.seconds > 0 and pieces.prompt_seconds > 0
        read = pieces.prompt_tokens
        history += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Hello!"}]
        before = told.position
        pieces = told.say(history)
        list(pieces)
        assert told.position - before == pieces.prompt_tokens + pieces.tokens < read + before
        assert [message["role"] for message in told.messages] == ["user", "assistant"] * 3
        assert "image_url" in refused("WL_ERROR_ARGUMENT", told.say, [{"role": "user", "content": [{"type": "image_url"}]}])
        parts = [{"role": "user", "name": "x", "content": [{"type": "text", "text": "Hi."}]}, {"role": "assistant", "content": None}]
        list(told.say(parts, max_tokens=2))
        assert told.messages[0] == parts[0] and len(told.messages) == 2
        class Said:
            """A message as an object of a client library."""

            def model_dump(self, exclude_none):
                return {"role": "user", "content": [{"type": "text", "text": "Hello!"}]}

        list(told.say([Said()], max_tokens=2))
        assert told.messages[0]["content"] == [{"type": "text", "text": "Hello!"}]
        raises(TypeError, "found a object", told.say, [object()])
        told.cancel()
        assert "".join(told.say("Hello again!"))

    # Token by token: log-probabilities, a callback on logits, exceptions of both callbacks; thinking and tools of the template.
    with model.session(temperature=0, threads=1) as seen, model.session(temperature=0, threads=1, lookup=6) as drafting:
        prompt = model.tokenize("Once upon a time")
        seen.feed(prompt)
        tokens = []
        text = "".join(seen.generate(max_tokens=6, ignore_end=True, logprobs=True, on_token=tokens.append))
        assert len(tokens) == 6 and "".join(token.text for token in tokens) == text
        assert all(-9 < token.logprob <= 0 for token in tokens)
        drafting.feed(prompt)
        assert "".join(drafting.generate(max_tokens=6, ignore_end=True)) == text and drafting.info["drafted"] >= 0
        raises(waterline.Error, "choose one", model.session, lookup=1, mtp=1)

        def forbid(logits):
            logits[tokens[0].id] = -1e30

        seen.reset()
        seen.feed(prompt)
        others = []
        list(seen.generate(max_tokens=6, on_logits=forbid, on_token=lambda token: others.append(token) or len(others) < 2))
        assert len(others) == 2 and others[0].id != tokens[0].id and others[0].logprob is None
        raises(ZeroDivisionError, "zero", lambda: list(seen.generate(max_tokens=3, on_token=lambda token: 1 // 0)))
        raises(KeyError, "x", lambda: list(seen.generate(max_tokens=3, on_logits=lambda logits: {}["x"])))
        seen.thinking(False)
        seen.thinking(None)
        seen.tools([{"type": "function", "function": {"name": "now", "parameters": {}}}])
        seen.tools([])
        assert "".join(seen.say("Hello!", max_tokens=4))

    # Constraints on answers.
    with model.session(temperature=0, threads=1) as formed:
        age = {"type": "object", "properties": {"age": {"enum": [7]}}, "required": ["age"], "additionalProperties": False}
        formed.constrain(schema=age)
        assert "".join(formed.say("Hello!")) == '{"age": 7}'
        formed.constrain(regex="[a-c]{2}")
        assert "".join(formed.say("Hello!")) in {a + b for a in "abc" for b in "abc"}
        formed.constrain(grammar='start: "x" "y"+')
        assert "".join(formed.say("Hello!", max_tokens=3)).startswith("xy")
        formed.constrain(json_object=True)
        assert "".join(formed.say("Hello!", max_tokens=1)).startswith("{")
        raises(TypeError, "one of", formed.constrain, schema=age, regex="x")
        assert "grammar" in refused("WL_ERROR_ARGUMENT", formed.constrain, regex="(")
        formed.constrain()
        formed.reset()
        assert "".join(formed.say("Hello!"))[0].isalpha()

    # The event loop keeps running while a session answers, and a cancelled task ends its generation.
    async def talk():
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        with model.session(temperature=0) as alone, model.session(temperature=0) as other:
            expected = "".join(alone.say("My name is Anna.", max_tokens=8))
            counting = asyncio.create_task(count())
            answer = other.say_async("My name is Anna.", max_tokens=8)
            pieces = [piece async for piece in answer]
            assert "".join(pieces) == expected and answer.finish is not None and answer.tokens <= 8 and turns > 0
            endless = other.generate_async(max_tokens=10**6, ignore_end=True)
            task = asyncio.create_task(endless.__anext__())
            await asyncio.sleep(0)
            task.cancel()
            raised = (await asyncio.gather(task, return_exceptions=True))[0]
            assert isinstance(raised, asyncio.CancelledError)
            counting.cancel()

    asyncio.run(talk())

    # Answers generated together equal the answers generated alone.
    messages = ["My name is Anna.", "Tell me a story."]
    alone = []
    for message in messages:
        with model.session(temperature=0, threads=1) as session:
            alone.append("".join(session.say(message, max_tokens=12)))
    sessions = [model.session(temperature=0, threads=1) for _ in messages]
    with Batch(sessions[0], 2) as batch:
        generations = [session.say(message, max_tokens=12) for session, message in zip(sessions, messages)]
        answers = ["", ""]
        pieces = batch.generate(generations)
        while any(piece is not None for piece in pieces):
            answers = [answer + (piece or "") for answer, piece in zip(answers, pieces)]
            pieces = batch.generate(generations)
        assert answers == alone, (answers, alone)
        assert [list(generation) for generation in generations] == [[], []] and generations[1].tokens == 12
        tokens = batch.step(sessions)
        batch.feed(sessions, tokens)
        assert len(tokens) == 2 and batch.step([]) == []
        raises(ValueError, "found 1 for 2", batch.feed, sessions, [1])

    # Sessions share the tokens they have read, and so do processes through a directory.
    history = [{"role": "user", "content": "Tell me a story."}]
    shutil.rmtree(folder / "store", ignore_errors=True)
    for again in (False, True):
        with Store(directory=folder / "store") as store:
            one, other = (model.session(temperature=0, store=store) for _ in range(2))
            found = one.set_messages(history)
            assert found.read == 0 if again else found.reused == 0
            assert other.set_messages(history) == (one.position, 0)
            once = model.tokenize("Once")
            assert other.read_history(once).reused == (len(once) if again else 0)
            other.checkpoint()
            store.flush()
            stats = store.stats
            assert stats["files"] > 0 and 0 < stats["bytes"] <= 1 << 30 and stats["reused_tokens"] >= one.position
    with Store(directory=folder / "store") as store:
        store.clear()
        assert store.stats["files"] == 0

    # The plan of the file, before it is loaded, matches the session.
    planned = plan(gguf, threads=1, marks=2)
    assert planned == model.plan(threads=1, marks=2)
    session = model.session(temperature=0, threads=1, marks=2, logit_bias={1: -1e9})
    assert {name: session.info[name] for name in ("state_bytes", "work_bytes")}.items() <= planned.items()

    # Logits are a view of the library's memory, which outlives close.
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

    # A generation is an iterator that also reports how it ended.
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
