"""Checks what the Python package rejects, and concurrent threads. Needs no other package. The argument is a folder to write to."""

import gc
import sys
import threading
import time
import weakref
from pathlib import Path

# Simulates a system without numpy.
sys.modules["numpy"] = None

from waterline import Batch, Error, Model, plan

folder = Path(sys.argv[1])


def raises(part, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except (ValueError, TypeError) as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"{call} was not refused")


with Model.builtin() as model, model.session(temperature=0, marks=2) as session:
    # Integers that C would truncate.
    for token in (2**32, 2**32 + 5, -1, 2**64):
        expected = f"token: found {token}, expected 0 to 4294967295"
        raises(expected, session.feed, [1, token])
        raises(expected, model.detokenize, [token])
        raises(expected, model.session, logit_bias={token: 1.0})
        raises(expected, session.set_sampler, logit_bias={token: 1.0})
        raises(expected, session.generate, stop_tokens=[token])
        raises(expected, session.say, "Hi.", stop_tokens=[token])
    for position in (-1, 2**64):
        raises(f"position: found {position}", session.rewind, position)
    raises("float", session.feed, [1.5])
    assert session.position == 0
    session.feed(range(1, 4))
    assert session.position == 3

    # Without numpy, logits are a memoryview of floats, which a callback may change.
    view = session.logits
    assert view.format == "f" and view.readonly and len(view) == model.info["vocab"]
    best = max(range(len(view)), key=view.__getitem__)
    assert session.sample() == best
    with session.fork() as fork:
        def forbid(logits):
            logits[best] = -1e30

        seen = []
        list(fork.generate(max_tokens=1, on_logits=forbid, on_token=seen.append))
        assert seen[0].id != best

    # Texts that C would cut off.
    raises("zero byte", Model, "model\0.gguf")
    raises("zero byte", plan, "model\0.gguf")
    path = str(folder / "state") + "\0.txt"
    raises("zero byte", session.save, path)
    raises("zero byte", session.load, path)
    assert not (folder / "state").exists()
    raises("zero byte", session.generate, stop="a\0b")

    # Any bytes-like object.
    state = session.state()
    session.feed([7])
    session.restore(memoryview(bytearray(state)))
    assert session.position == 3
    raises("bytes-like", session.restore, 5)

    # Each thread copies its piece before another thread's call can overwrite the memory.
    end = time.monotonic() + 2
    wrong, pieces = [], [0]

    def talk(number):
        while time.monotonic() < end and not wrong:
            try:
                for piece in session.generate(max_tokens=3, ignore_end=True):
                    pieces[0] += 1
                    if not piece or "\0" in piece:
                        wrong.append(piece)
                session.feed([number])
                session.state()
                assert session.sampler["temperature"] == 0
            except Error as error:
                # Another thread's call ended this thread's generation, as every call does.
                if "another call ended it" not in str(error):
                    wrong.append(error)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    assert pieces[0] > 10

    # If another thread closes a session during a call, the call finishes or raises an error.
    for _ in range(20):
        other = session.fork()
        closer = threading.Thread(target=other.close)
        closer.start()
        try:
            other.state()
        except ValueError as error:
            assert "closed" in str(error)
        closer.join()

# The library's callbacks live as long as it may call them, and an older generation cannot advance a newer one.
with Model.builtin() as model, model.session(threads=1, temperature=0) as session:
    session.feed([1, 2, 3])
    batch = Batch(session, 2)
    seen = []
    first = session.generate(max_tokens=50, ignore_end=True)
    second = session.generate(on_token=seen.append, max_tokens=50, ignore_end=True)
    for advance in (lambda: batch.generate([first]), lambda: next(first)):
        try:
            advance()
        except Error as error:
            assert "another call ended it" in str(error), error
        else:
            raise AssertionError("an older generation advanced a newer one")
    assert batch.generate([second]) != [None] and len(seen) == 1
    thunks = weakref.ref(second._hooks)
    del second
    gc.collect()
    assert thunks() is not None
    session.generate(max_tokens=1)
    gc.collect()
    assert thunks() is None
    batch.close()

    # The array of a callback is its own: it may be kept and written after the session is closed.
    kept = []
    session.reset()
    session.feed([1, 2, 3])
    list(session.generate(on_logits=kept.append, max_tokens=3))
    assert len({id(logits.obj) for logits in kept}) == 3
    before = list(session.logits)
    kept[2][0] = kept[0][0] = 7.0
    assert list(session.logits) == before
    view = session.logits
session = None
gc.collect()
kept[1][0] = 1.0
assert list(view) == before

# A model copied into memory, after which the file may change.
gguf = Path(__file__).parents[3] / "tools/model/waterline-chat.gguf"
copied = folder / "copied.gguf"
copied.write_bytes(gguf.read_bytes())
with Model(copied, copy=True) as model:
    copied.write_bytes(b"")
    with model.session(temperature=0, exact=True) as session:
        session.feed([1, 2, 3])
        session.step()
print("all right")
