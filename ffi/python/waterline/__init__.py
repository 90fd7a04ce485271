"""waterline: recurrent and hybrid language models in fixed memory.

>>> with Model.builtin() as model, model.session(temperature=0) as session:
...     print("".join(session.say("Tell me a story.")))
"""

import collections
import ctypes
import enum
import functools
import json
import signal
import threading
from ctypes import byref, c_size_t, c_uint32, c_void_p

from . import _library as lib
from ._batch import Batch
from ._hooks import Hooks, Token
from ._library import Closing, Error, check, library

__all__ = ["Batch", "Cache", "Device", "Error", "Finish", "Generation", "HistoryRead", "Model", "Session", "Store", "Token", "plan", "version"]


def version():
    """The library's version."""
    return library.wl_version().decode()


class _Name(enum.IntEnum):
    """A number of the library that is printed as its name."""

    __str__ = enum.Enum.__str__


class Device(_Name):
    """Where a model computes."""

    AUTO = 0
    CPU = 1
    CUDA = 2


class Cache(_Name):
    """How keys and values of attention are stored."""

    F16 = 0
    F32 = 1


class Finish(_Name):
    """Why a generation ended."""

    END = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    CALLER = 4


def _sampler_params(values, params=None):
    """The sampler's parameters: `values` in place of those of `params`, or of the defaults."""
    values = dict(values)
    if params is None:
        params = lib.filled(lib.SamplerParams(), library.wl_sampler_params_init)
    bias = values.pop("logit_bias", None)
    if bias is not None:
        entries = [(lib.whole("token", token, c_uint32), value) for token, value in bias.items()]
        params.bias, params.bias_count = (lib.LogitBias * len(entries))(*entries), len(entries)
    return params.set(values)


def _known(values, names):
    unknown = sorted(values.keys() - names)
    if unknown:
        raise TypeError(f"unknown parameters {unknown}; known are {sorted(names)}")
    return values


_SAMPLER = {name for name, _ in lib.SamplerParams._fields_} - {"size", "reserved", "bias", "bias_count"} | {"logit_bias"}
_SESSION = {name for name, _ in lib.SessionParams._fields_} - {"size", "sampler", "reserved"}


def _session_params(values):
    _known(values, _SAMPLER | _SESSION)
    params = lib.filled(lib.SessionParams(), library.wl_session_params_init)
    sampler = _sampler_params({name: value for name, value in values.items() if name in _SAMPLER})
    params.sampler = ctypes.pointer(sampler)
    values = {name: value for name, value in values.items() if name in _SESSION}
    if values.get("store") is not None:
        # The parameters hold the handle: another thread may close the store meanwhile.
        params.handle = values["store"]._value
        values["store"] = params.handle._as_parameter_
    return params.set(values)


def _generate_params(max_tokens, stop, stop_tokens, ignore_end, logprobs, on_token, on_logits):
    params = lib.filled(lib.GenerateParams(), library.wl_generate_params_init)
    params.set({"max_tokens": max_tokens})
    texts = [lib.c_string("stop", text.encode()) for text in ([stop] if isinstance(stop, str) else stop)]
    params.stop, params.stop_count = (ctypes.c_char_p * len(texts))(*texts), len(texts)
    tokens = lib.tokens(stop_tokens)
    params.stop_tokens, params.stop_token_count = tokens, len(tokens)
    params.ignore_end, params.logprobs = bool(ignore_end), bool(logprobs)
    params.hooks = Hooks(on_token, on_logits, logprobs)
    params.on_token, params.on_logits = params.hooks.token, params.hooks.logits
    return params


def plan(path, **params):
    """The memory that a model file and a session on it would need, in bytes, before anything is loaded."""
    result = lib.Plan()
    check(library.wl_plan_file(lib.path(path), byref(_session_params(params)), byref(result)))
    return result.as_dict()


class Model(Closing):
    """A model: weights and description, shared by any number of sessions. `device=Device.CUDA, gpu=N` is GPU number N."""

    def __init__(self, path, device=Device.AUTO, gpu=0, allow_unused=False, copy=False, mtp=False):
        """Opens a GGUF file or a Hugging Face directory; with `allow_unused` also one that holds what nothing here uses, with
        `copy` into memory, so that the files may be rewritten, with `mtp` together with the block that drafts."""
        self._open(library.wl_model_open, (device, gpu, allow_unused, copy, mtp), lib.path(path))

    @classmethod
    def builtin(cls, device=Device.AUTO, gpu=0):
        """The model that is part of the library."""
        model = cls.__new__(cls)
        model._open(library.wl_model_builtin, (device, gpu, False, False, False))
        return model

    @classmethod
    def from_bytes(cls, content, device=Device.AUTO, gpu=0, allow_unused=False):
        """A GGUF file that lies in memory."""
        model = cls.__new__(cls)
        model._open(library.wl_model_from_memory, (device, gpu, allow_unused, False, False), *_bytes(content))
        return model

    def _open(self, function, options, *arguments):
        device, gpu, allow_unused, copy, mtp = options
        params = lib.filled(lib.ModelParams(), library.wl_model_params_init)
        params.set({"device": Device(device), "gpu": gpu, "allow_unused": bool(allow_unused), "copy": bool(copy), "mtp": bool(mtp)})
        self._handle = lib.make(library.wl_model_free, function, *arguments, byref(params))

    @property
    def info(self):
        """Vocabulary, parameters, bytes, special tokens."""
        info = lib.ModelInfo()
        check(library.wl_model_get_info(self._value, byref(info)))
        return info.as_dict()

    @property
    def name(self):
        """Its name."""
        handle, name = self._value, ctypes.c_char_p()
        check(library.wl_model_name(handle, byref(name)))
        return name.value.decode()

    @property
    def device(self):
        """Where its sessions compute, and why there if that was left to the library."""
        handle, text = self._value, ctypes.c_char_p()
        check(library.wl_model_device(handle, byref(text)))
        return text.value.decode()

    @property
    def spec(self):
        """Its dimensions, layer by layer."""
        handle, text = self._value, ctypes.c_char_p()
        check(library.wl_model_spec_json(handle, byref(text)))
        return json.loads(text.value)

    @property
    def notes(self):
        """What a person should know of its files, each a sentence."""
        text = ctypes.c_char_p()
        check(library.wl_model_notes(self._value, byref(text)))
        return text.value.decode().splitlines()

    def plan(self, **params):
        """The memory of a session with these parameters, in bytes."""
        result = lib.Plan()
        check(library.wl_plan_model(self._value, byref(_session_params(params)), byref(result)))
        return result.as_dict()

    def tokenize(self, text, special=False):
        """The tokens of a text; `special` lets the names of special tokens mean these tokens."""
        text = text.encode()
        count = c_size_t()
        tokens = (c_uint32 * (len(text) + 16))()
        status = library.wl_tokenize(self._value, text, len(text), bool(special), tokens, len(tokens), byref(count))
        if status == lib.ROOM:
            tokens = (c_uint32 * count.value)()
            status = library.wl_tokenize(self._value, text, len(text), bool(special), tokens, len(tokens), byref(count))
        check(status)
        return tokens[: count.value]

    def detokenize(self, tokens):
        """The exact bytes of tokens, which may begin or end inside a character."""
        tokens, length = lib.tokens(tokens), c_size_t()
        check(library.wl_detokenize(self._value, tokens, len(tokens), None, 0, byref(length)))
        room = ctypes.create_string_buffer(length.value + 1)
        check(library.wl_detokenize(self._value, tokens, len(tokens), room, len(room), byref(length)))
        return room.raw[: length.value]

    def session(self, **params):
        """A session. Parameters are those of wl_session_params and wl_sampler_params, and `logit_bias`, a dict; `store` is a Store."""
        return Session(lib.make(library.wl_session_free, library.wl_session_new, self._value, byref(_session_params(params))))


class _Watch:
    """Is called after every chunk of a prompt. Exceptions cannot pass through C: one that is raised here cancels the call, and
    is raised again when the call returns. Meanwhile Ctrl-C is noted, so that its handler runs here and not where an exception
    would be lost."""

    def __init__(self):
        self.function = self.raised = self.interrupt = self.handler = None

    def __call__(self, read, total, _):
        try:
            self._handle()
            stops = self.function is not None and self.function(read, total) is False
            self._handle()
            return stops
        except BaseException as raised:
            self.raised = raised
            return True

    def call(self, function, *arguments):
        """Calls a function that reads; raises what was raised meanwhile, or what a status other than WL_OK means."""
        handler = signal.getsignal(signal.SIGINT)
        notes = callable(handler) and threading.current_thread() is threading.main_thread()
        if notes:
            self.handler = handler
            signal.signal(signal.SIGINT, self._note)
        try:
            status = function(*arguments)
        finally:
            if notes:
                signal.signal(signal.SIGINT, handler)
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
        self._handle()
        check(status)

    def _note(self, number, frame):
        self.interrupt = number, frame

    def _handle(self):
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            self.handler(*interrupt)


def _bytes(content):
    """The bytes of something that has some, and how many: of an array of numbers not how many numbers."""
    content = bytes(memoryview(content))
    return content, len(content)


def _locked(method):
    """A method that no other thread runs at once: the library's memory is copied before the next call can change it."""
    @functools.wraps(method)
    def call(self, *arguments, **named):
        with self._lock:
            return method(self, *arguments, **named)

    return call


class HistoryRead(collections.namedtuple("HistoryRead", ["reused", "read"])):
    """How a history came into a session: tokens that were not read again, and tokens that were."""


class Store(Closing):
    """Checkpoints that sessions share, `model.session(store=store)`: a history that grew, was edited or is continued by another
    process goes on from the deepest one that it begins with."""

    def __init__(self, bytes=None, grid=None, directory=None, directory_bytes=None):
        """At most `bytes` in memory, a checkpoint at every `grid` tokens of a long prompt (or after every chunk); with a `directory` they are kept there,
        too, in at most `directory_bytes`. None leaves the library's defaults."""
        params = lib.filled(lib.StoreParams(), library.wl_store_params_init)
        params.set({"bytes": bytes, "grid": grid, "directory_bytes": directory_bytes})
        if directory is not None:
            params.directory = lib.path(directory)
        self._handle = lib.make(library.wl_store_free, library.wl_store_new, byref(params))

    @property
    def stats(self):
        """What it holds and has done."""
        stats = lib.StoreStats()
        check(library.wl_store_get_stats(self._value, byref(stats)))
        return stats.as_dict()

    def clear(self):
        """Forgets all checkpoints, those of the directory too."""
        check(library.wl_store_clear(self._value))

    def flush(self):
        """Waits until everything that was to be written to the directory has been."""
        check(library.wl_store_flush(self._value))


class Session(Closing):
    """A conversation or a text, with the state that has read it. A call waits for that of another thread, but for `cancel`. Ctrl-C
    ends the reading of a prompt after its current chunk, with KeyboardInterrupt; what was read until then stays read."""

    def __init__(self, handle):
        self._handle = handle
        # A call from inside on_progress is the same thread's.
        self._lock = threading.RLock()
        self._watch = _Watch()
        self._progress = lib.PROGRESS(self._watch)
        check(library.wl_session_set_progress(self._value, self._progress, None))

    @property
    @_locked
    def info(self):
        """Position, threads, bytes."""
        info = lib.SessionInfo()
        check(library.wl_session_get_info(self._value, byref(info)))
        return info.as_dict()

    @property
    def position(self):
        """Tokens read so far."""
        return self.info["position"]

    @_locked
    def feed(self, tokens):
        """Reads tokens."""
        tokens = lib.tokens(tokens)
        self._watch.call(library.wl_feed, self._value, tokens, len(tokens), None)

    @_locked
    def sample(self):
        """Chooses a token without reading it."""
        token = c_uint32()
        check(library.wl_sample(self._value, byref(token)))
        return token.value

    @_locked
    def step(self):
        """Chooses a token and reads it."""
        token = c_uint32()
        check(library.wl_step(self._value, byref(token)))
        return token.value

    @property
    @_locked
    def logits(self):
        """A read-only numpy view of the logits after the last token: the numbers change when the session reads on. The
        view keeps the session's memory, also after `close`."""
        import numpy

        handle, first, count = self._value, c_void_p(), c_size_t()
        check(library.wl_logits(handle, byref(first), byref(count)))
        memory = (ctypes.c_float * count.value).from_address(first.value)
        memory.handle = handle
        view = numpy.frombuffer(memory, dtype=numpy.float32)
        view.flags.writeable = False
        return view

    @_locked
    def generate(self, max_tokens=None, stop=(), stop_tokens=(), ignore_end=False, logprobs=False, on_token=None, on_logits=None):
        """Generates text after what has been read: an iterator of pieces.

        `on_token` is called with each Token, which has its log-probability if `logprobs`; if it returns False, that was the last one.
        `on_logits` is called with a numpy array of the logits before each token is chosen: what it changes holds for that choice."""
        params = _generate_params(max_tokens, stop, stop_tokens, ignore_end, logprobs, on_token, on_logits)
        check(library.wl_generate_start(self._value, byref(params)))
        return Generation(self, params.hooks)

    @_locked
    def say(self, message, max_tokens=None, stop=(), stop_tokens=(), ignore_end=False, logprobs=False, on_token=None, on_logits=None):
        """Sends a message: an iterator of the pieces of the answer.

        `message` is a text, or a whole history of dicts as `set_messages` takes it: only what is new of it is read. If its last
        message is an answer, the pieces go on with it. The rest is as in `generate`."""
        params = _generate_params(max_tokens, stop, stop_tokens, ignore_end, logprobs, on_token, on_logits)
        if isinstance(message, str):
            message = message.encode()
            self._watch.call(library.wl_chat_start, self._value, message, len(message), byref(params))
        else:
            self.set_messages(message)
            check(library.wl_generate_start(self._value, byref(params)))
        return Generation(self, params.hooks)

    @_locked
    def set_messages(self, messages):
        """The conversation becomes these messages, whatever it was: dicts of "role", "content" (a text, None, or parts of type
        "text") and whatever else the model's template takes. What the states at hand have read of them, the session's own and
        those of its store, is not read again. Returns how many tokens were reused and read; `generate` gives the answer."""
        text = json.dumps(list(messages)).encode()
        reused, read = c_size_t(), c_size_t()
        self._watch.call(library.wl_session_set_messages, self._value, text, len(text), byref(reused), byref(read))
        return HistoryRead(reused.value, read.value)

    @_locked
    def read_history(self, tokens):
        """Becomes a session that has read these tokens and nothing else, and reads as few of them as it can: returns how many
        were reused and read."""
        tokens = lib.tokens(tokens)
        reused = c_size_t()
        self._watch.call(library.wl_session_read_history, self._value, tokens, len(tokens), byref(reused))
        return HistoryRead(reused.value, len(tokens) - reused.value)

    @_locked
    def checkpoint(self):
        """Takes a checkpoint of this state in the session's store, if it has one."""
        check(library.wl_session_checkpoint(self._value))

    @_locked
    def on_progress(self, function):
        """Calls `function(read, total)` while a prompt is read, after every chunk; None ends it. If it returns False the
        call is cancelled; if it raises, the call is cancelled and raises the same."""
        self._watch.function = function

    @_locked
    def system(self, text):
        """Sets the instructions ahead of the conversation."""
        text = text.encode()
        check(library.wl_chat_system(self._value, text, len(text)))

    @_locked
    def thinking(self, request):
        """Whether the template requests a thought before the next answers: True, False, or None as it does by default."""
        check(library.wl_chat_thinking(self._value, -1 if request is None else bool(request)))

    @_locked
    def tools(self, schemas):
        """Names the functions that the model may call: dicts as the model's template takes them."""
        text = json.dumps(list(schemas)).encode()
        check(library.wl_chat_tools(self._value, text, len(text)))

    @_locked
    def constrain(self, schema=None, regex=None, grammar=None, json_object=False):
        """The form of the next answers: JSON that `schema` describes (a dict, or its text), a text that matches `regex`, one of a
        `grammar` in llguidance's variant of Lark, or any JSON object. Without arguments answers are free."""
        if isinstance(schema, (dict, bool)):
            schema = json.dumps(schema)
        # The numbers of wl_constraint.
        forms = [(kind, text) for kind, text in [(1, "" if json_object else None), (2, schema), (3, regex), (4, grammar)] if text is not None]
        if len(forms) > 1:
            raise TypeError("constrain takes one of schema, regex, grammar and json_object")
        kind, text = forms[0] if forms else (0, "")
        text = text.encode()
        check(library.wl_session_constrain(self._value, kind, text, len(text)))

    @_locked
    def undo(self):
        """Takes back the last message and its answer."""
        check(library.wl_chat_undo(self._value))

    @property
    @_locked
    def messages(self):
        """The conversation."""
        length = c_size_t()
        check(library.wl_chat_messages_json(self._value, None, 0, byref(length)))
        room = ctypes.create_string_buffer(length.value + 1)
        check(library.wl_chat_messages_json(self._value, room, len(room), byref(length)))
        return json.loads(room.value)

    @property
    @_locked
    def sampler(self):
        """How tokens are chosen, the seed that was drawn included."""
        params = self._sampler()
        found = params.as_dict()
        bias, count = found.pop("bias"), found.pop("bias_count")
        return {**found, "logit_bias": {bias[i].token: bias[i].bias for i in range(count)}}

    @_locked
    def _sampler(self):
        params = lib.SamplerParams()
        check(library.wl_session_get_sampler(self._value, byref(params)))
        return params

    @_locked
    def set_sampler(self, **params):
        """Changes how tokens are chosen; what is not given stays. A new seed restarts the random numbers."""
        _known(params, _SAMPLER)
        check(library.wl_session_set_sampler(self._value, byref(_sampler_params(params, self._sampler()))))

    @_locked
    def state(self):
        """The whole session as bytes."""
        size = c_size_t()
        check(library.wl_state_size(self._value, byref(size)))
        room = ctypes.create_string_buffer(size.value)
        check(library.wl_state_write(self._value, room, len(room), byref(size)))
        return room.raw[: size.value]

    @_locked
    def restore(self, state):
        """Goes on from a state, bit for bit."""
        check(library.wl_state_read(self._value, *_bytes(state)))

    @_locked
    def save(self, path):
        """Writes the state to a file."""
        check(library.wl_state_save(self._value, lib.path(path)))

    @_locked
    def load(self, path):
        """Goes on from a file."""
        check(library.wl_state_load(self._value, lib.path(path)))

    @_locked
    def fork(self):
        """A second session in the same state."""
        return Session(lib.make(library.wl_session_free, library.wl_session_fork, self._value))

    @_locked
    def mark(self):
        """Remembers this state for `rewind`."""
        check(library.wl_session_mark(self._value))

    @_locked
    def rewind(self, position):
        """Goes back to an earlier position."""
        check(library.wl_session_rewind(self._value, lib.whole("position", position, ctypes.c_uint64)))

    @_locked
    def reset(self):
        """Forgets everything that was read or said."""
        check(library.wl_session_reset(self._value))

    def cancel(self):
        """Ends the call that another thread is in, or the generation that is going on; one that comes late does nothing."""
        check(library.wl_session_cancel(self._value))

    def clear_cancel(self):
        """Forgets a `cancel` that came between two pieces of a generation."""
        check(library.wl_session_clear_cancel(self._value))


class Generation:
    """An iterator of pieces of text. After it, `finish` says why it ended, `tokens` how many tokens there were and
    `seconds` what they took; `prompt_tokens` and `prompt_seconds` say the same of the message before, and `reused_tokens` how much of
    the conversation was not read again. Any other call on the session ends it early."""

    def __init__(self, session, hooks):
        self._session, self._hooks = session, hooks
        self.finish = self.tokens = self.seconds = self.prompt_tokens = self.prompt_seconds = self.reused_tokens = None

    def __iter__(self):
        return self

    def __next__(self):
        if self.finish is not None:
            raise StopIteration
        text, length, result = c_void_p(), c_size_t(), lib.GenerateResult()
        with self._session._lock:
            handle = self._session._value
            check(library.wl_generate_next(handle, byref(text), byref(length), byref(result)))
            piece = text.value and ctypes.string_at(text.value, length.value)
            self._hooks.check()
        if text.value is None:
            self.finish = Finish(result.finish)
            self.tokens, self.seconds = result.tokens, result.seconds
            self.prompt_tokens, self.prompt_seconds = result.prompt_tokens, result.prompt_seconds
            self.reused_tokens = result.reused_tokens
            raise StopIteration
        return piece.decode()
