"""Sessions: a conversation or a text, with the state that has read it."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import threading
from collections.abc import Mapping
from ctypes import byref, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Iterable, SupportsIndex, TypeVar, Union

from . import _structs as structs
from ._generation import AsyncGeneration, Generation
from ._hooks import Hooks
from ._library import Closing, Handle, check, library, make
from ._logits import array
from ._names import Finish
from ._params import embed_params, generate_params, sampler_params
from ._store import HistoryRead
from ._tools import Function, result, schema
from ._watch import OnProgress, Watch

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._params import EmbedOptions, GenerateOptions, SamplerOptions

F = TypeVar("F", bound=Callable[..., Any])
Message = Union[Mapping[str, Any], Any]


def as_bytes(content: Any) -> tuple[bytes, int]:
    """Returns the bytes of a bytes-like object and their number, which for an array of numbers is not the number of elements."""
    found = bytes(memoryview(content))
    return found, len(found)


def _plain(value: Any) -> Any:
    """Converts an object of a client library, such as openai's messages, to a dict."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True)
    raise TypeError(f"messages: found a {type(value).__name__}, expected what JSON can hold")


def encoded(messages: Iterable[Message]) -> bytes:
    """Returns the JSON of messages."""
    return json.dumps(list(messages), default=_plain).encode()


def _locked(method: F) -> F:
    """Serializes a method across threads: the library's memory is copied before the next call can change it."""

    @functools.wraps(method)
    def call(self: Session, *arguments: Any, **named: Any) -> Any:
        with self._lock:
            return method(self, *arguments, **named)

    return call  # type: ignore[return-value]


class Session(Closing):
    """A conversation or a text, with the state that has read it. A call, except `cancel`, waits for calls of other threads to finish.
    Ctrl-C stops reading a prompt after its current chunk, with KeyboardInterrupt; the tokens read so far stay read."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        # Reentrant, because a call from inside on_progress comes from the same thread.
        self._lock = threading.RLock()
        self._watch = Watch()
        self._progress = structs.PROGRESS(self._watch)
        # The callbacks of the newest generation: the library may call them after its Generation is gone.
        self._hooks: Hooks | None = None
        check(library.wl_session_set_progress(self._value, self._progress, None))

    @property
    @_locked
    def info(self) -> dict[str, Any]:
        """The position, threads and bytes."""
        info = structs.SessionInfo()
        check(library.wl_session_get_info(self._value, byref(info)))
        return info.as_dict()

    @property
    def position(self) -> int:
        """The number of tokens read so far."""
        position: int = self.info["position"]
        return position

    @_locked
    def feed(self, tokens: Iterable[SupportsIndex]) -> None:
        """Reads tokens."""
        numbers = structs.tokens(tokens)
        self._watch.call(library.wl_feed, self._value, numbers, len(numbers), None)

    @_locked
    def embed(self, tokens: Iterable[SupportsIndex], **params: Unpack[EmbedOptions]) -> Any:
        """Returns the vector of a text of these tokens (`Model.embed_tokenize`), a numpy array or, without numpy, a memoryview of floats.
        The session forgets everything else that it has read.

        Parameters: `pooling` and `normalize`, by default as the model's files state them; `dimensions`, to which the vector is cut."""
        numbers = structs.tokens(tokens)
        options, length = embed_params(**params), c_size_t()
        check(library.wl_embed(self._value, numbers, len(numbers), byref(options), None, 0, byref(length)))
        vector = (ctypes.c_float * length.value)()
        self._watch.call(
            library.wl_embed, self._value, numbers, len(numbers), byref(options), vector, length.value, byref(length))
        return array(vector, writable=True)

    @_locked
    def sample(self) -> int:
        """Chooses a token without reading it."""
        token = c_uint32()
        check(library.wl_sample(self._value, byref(token)))
        return token.value

    @_locked
    def step(self) -> int:
        """Chooses a token and reads it."""
        token = c_uint32()
        check(library.wl_step(self._value, byref(token)))
        return token.value

    @property
    @_locked
    def logits(self) -> Any:
        """A read-only view of the logits after the last token, a numpy array or, without numpy, a memoryview of floats. Its values change
        when the session reads on. The view keeps the session's memory alive, also after `close`."""
        handle, first, count = self._value, c_void_p(), c_size_t()
        check(library.wl_logits(handle, byref(first), byref(count)))
        memory = (ctypes.c_float * count.value).from_address(first.value or 0)
        memory.handle = handle  # type: ignore[attr-defined]
        return array(memory, writable=False)

    @_locked
    def generate(self, **options: Unpack[GenerateOptions]) -> Generation:
        """Generates text after the tokens read so far: returns an iterator of pieces.

        Options: `max_tokens`; `stop`, a text or texts; `stop_tokens`; `ignore_end`; `logprobs`; `thought_tokens`, the most tokens of the
        thought with which an answer begins, after which it is closed. `on_token` is called with each Token, which
        has a log-probability if `logprobs` is set; generation stops after the token if it returns False. `on_logits` is called with an
        array of the logits, like `logits`, before each token is chosen; its changes apply to that choice only."""
        params = self._newest(generate_params(**options))
        check(library.wl_generate_start(self._value, byref(params)))
        return Generation(self, params.hooks)

    @_locked
    def say(self, message: str | Iterable[Message], **options: Unpack[GenerateOptions]) -> Generation:
        """Sends a message: returns an iterator of the pieces of the answer.

        `message` is a text, or a complete history as for `set_messages`: only its new part is read. If its last message is an answer, the
        pieces continue it. The options are those of `generate`."""
        params = self._newest(generate_params(**options))
        if isinstance(message, str):
            text = message.encode()
            self._watch.call(library.wl_chat_start, self._value, text, len(text), byref(params))
        else:
            self.set_messages(message)
            check(library.wl_generate_start(self._value, byref(params)))
        return Generation(self, params.hooks)

    def _newest(self, params: structs.GenerateParams) -> structs.GenerateParams:
        """Keeps the callbacks alive, and ends the generation before, whose callbacks may then go."""
        self._hooks = params.hooks
        return params

    def generate_async(self, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """Like `generate`, for `async for piece in session.generate_async()`."""
        return AsyncGeneration(self, functools.partial(self.generate, **options))

    def say_async(self, message: str | Iterable[Message], **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """Like `say`, for `async for piece in session.say_async("Hello!")`."""
        return AsyncGeneration(self, functools.partial(self.say, message, **options))

    @_locked
    def set_messages(self, messages: Iterable[Message]) -> HistoryRead:
        """Replaces the conversation with these messages: dicts of "role", "content" (a text, None, or parts of type "text") and other
        fields that the model's template uses, or a client's message objects. The part that the session's state or its store has read
        already is not read again. Returns the numbers of tokens reused and read; `generate` gives the answer."""
        text = encoded(messages)
        reused, read = c_size_t(), c_size_t()
        self._watch.call(library.wl_session_set_messages, self._value, text, len(text), byref(reused), byref(read))
        return HistoryRead(reused.value, read.value)

    @_locked
    def read_history(self, tokens: Iterable[SupportsIndex]) -> HistoryRead:
        """Makes the session one that has read these tokens and nothing else, reading as few of them as possible: returns the numbers of
        tokens reused and read."""
        numbers, reused = structs.tokens(tokens), c_size_t()
        self._watch.call(library.wl_session_read_history, self._value, numbers, len(numbers), byref(reused))
        return HistoryRead(reused.value, len(numbers) - reused.value)

    @_locked
    def checkpoint(self) -> None:
        """Stores a checkpoint of the current state in the session's store, if it has one."""
        check(library.wl_session_checkpoint(self._value))

    @_locked
    def on_progress(self, function: OnProgress | None) -> None:
        """Calls `function(read, total)` after every chunk of a prompt; None removes it. If the function returns False, the call is
        cancelled; if it raises an exception, the call is cancelled and raises it again."""
        self._watch.function = function

    @_locked
    def system(self, text: str) -> None:
        """Sets the instructions before the conversation."""
        encoded = text.encode()
        check(library.wl_chat_system(self._value, encoded, len(encoded)))

    @_locked
    def thinking(self, request: bool | None) -> None:
        """Sets whether the template requests thinking text before the next answers: True, False, or None for its default."""
        check(library.wl_chat_thinking(self._value, -1 if request is None else bool(request)))

    @_locked
    def variable(self, name: str, value: Any) -> None:
        """Sets a variable of the model's template, such as `reasoning_effort`, from the next message on; None leaves it undefined."""
        check(library.wl_chat_variable(self._value, structs.c_string("name", name.encode()), json.dumps(value).encode()))

    @_locked
    def tools(self, schemas: Iterable[Mapping[str, Any]]) -> None:
        """Sets the functions that the model may call: dicts in the format of the model's template. If the template lists no functions, the
        system message does. An answer's `tool_calls` are their calls."""
        text = json.dumps(list(schemas)).encode()
        check(library.wl_chat_tools(self._value, text, len(text)))

    @_locked
    def results(self, results: Iterable[Any]) -> None:
        """Adds the results of the calls in the last answer, in their order: texts, or what JSON can hold. `generate` gives the next
        answer."""
        texts = [result if isinstance(result, str) else json.dumps(result) for result in results]
        pointers = [structs.c_string("results", text.encode()) for text in texts]
        self._watch.call(library.wl_chat_results, self._value, (ctypes.c_char_p * len(pointers))(*pointers), len(pointers))

    def run(
        self,
        message: str | Iterable[Message],
        tools: Iterable[Function],
        most_rounds: int = 16,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Sends a message like `say`, calls the functions that the answer calls, and sends their results, until an answer calls none, a
        limit or a stop text cuts it, or `most_rounds` answers have called some. Returns the last answer.

        The schema of a function has its name, its docstring, and the type hints of its parameters. A call that does not fit its function
        gives the model an error; an exception of the function is raised here."""
        functions = {function.__name__: function for function in tools}
        self.tools([schema(function) for function in functions.values()])
        answer = self.say(message, **options)
        for _ in range(most_rounds):
            calls = answer.tool_calls
            if not calls or answer.finish is not Finish.END:
                break
            self.results([result(functions, call) for call in calls])
            answer = self.generate(**options)
        return answer

    @_locked
    def constrain(
        self,
        schema: Mapping[str, Any] | bool | str | type[Any] | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        json_object: bool = False,
    ) -> None:
        """Constrains the next answers: JSON that fits `schema` (a dict, its text, or a Pydantic class), a text that matches `regex`,
        a text of a `grammar` in llguidance's variant of Lark, or any JSON object. Without arguments it removes the constraint."""
        if hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
        if isinstance(schema, (Mapping, bool)):
            schema = json.dumps(schema)
        # The numbers of wl_constraint.
        choices = [(1, "" if json_object else None), (2, schema), (3, regex), (4, grammar)]
        forms = [(kind, text) for kind, text in choices if text is not None]
        if len(forms) > 1:
            raise TypeError("constrain takes one of schema, regex, grammar and json_object")
        kind, text = forms[0] if forms else (0, "")
        encoded = text.encode()
        check(library.wl_session_constrain(self._value, kind, encoded, len(encoded)))

    @_locked
    def undo(self) -> None:
        """Removes the last message and its answer."""
        check(library.wl_chat_undo(self._value))

    @property
    @_locked
    def messages(self) -> list[dict[str, Any]]:
        """The conversation."""
        length = c_size_t()
        check(library.wl_chat_messages_json(self._value, None, 0, byref(length)))
        room = ctypes.create_string_buffer(length.value + 1)
        check(library.wl_chat_messages_json(self._value, room, len(room), byref(length)))
        messages: list[dict[str, Any]] = json.loads(room.value)
        return messages

    @property
    @_locked
    def sampler(self) -> dict[str, Any]:
        """The sampling parameters, including the seed that was drawn."""
        params = self._sampler()
        found = params.as_dict()
        bias, count = found.pop("bias"), found.pop("bias_count")
        return {**found, "logit_bias": {bias[i].token: bias[i].bias for i in range(count)}}

    @_locked
    def _sampler(self) -> structs.SamplerParams:
        params = structs.SamplerParams()
        check(library.wl_session_get_sampler(self._value, byref(params)))
        return params

    @_locked
    def set_sampler(self, **params: Unpack[SamplerOptions]) -> None:
        """Changes the given sampling parameters and keeps the others. A new seed restarts the random numbers."""
        check(library.wl_session_set_sampler(self._value, byref(sampler_params(params, self._sampler()))))

    @_locked
    def state(self) -> bytes:
        """Returns the complete session as bytes."""
        size = c_size_t()
        check(library.wl_state_size(self._value, byref(size)))
        room = ctypes.create_string_buffer(size.value)
        check(library.wl_state_write(self._value, room, len(room), byref(size)))
        return room.raw[: size.value]

    @_locked
    def restore(self, state: Any) -> None:
        """Restores a state, bit for bit."""
        check(library.wl_state_read(self._value, *as_bytes(state)))

    @_locked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state to a file."""
        check(library.wl_state_save(self._value, structs.path(path)))

    @_locked
    def load(self, path: str | os.PathLike[str]) -> None:
        """Restores a state from a file."""
        check(library.wl_state_load(self._value, structs.path(path)))

    @_locked
    def fork(self) -> Session:
        """Makes a second session in the same state."""
        return Session(make(library.wl_session_free, library.wl_session_fork, self._value))

    @_locked
    def mark(self) -> None:
        """Remembers the current state for `rewind`."""
        check(library.wl_session_mark(self._value))

    @_locked
    def rewind(self, position: SupportsIndex) -> None:
        """Goes back to an earlier position."""
        check(library.wl_session_rewind(self._value, structs.whole("position", position, ctypes.c_uint64)))

    @_locked
    def reset(self) -> None:
        """Forgets everything that was read or said."""
        check(library.wl_session_reset(self._value))

    def cancel(self) -> None:
        """Ends the call of another thread or the running generation; does nothing if neither exists."""
        check(library.wl_session_cancel(self._value))

    def clear_cancel(self) -> None:
        """Discards a `cancel` that arrived between two pieces of a generation."""
        check(library.wl_session_clear_cancel(self._value))
