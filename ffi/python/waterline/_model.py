"""Models, and the memory they need."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import byref, c_size_t, c_uint32
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, SupportsIndex, TypeVar

from . import _structs as structs
from ._library import ROOM, Closing, Handle, check, filled, library, make
from ._names import Device
from ._params import session_params
from ._session import Message, Session, as_bytes, encoded

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._params import SessionOptions

M = TypeVar("M", bound="Model")


def plan(path: str | os.PathLike[str], **params: Unpack[SessionOptions]) -> dict[str, Any]:
    """Returns the memory in bytes that a model file and a session on it would need, without loading the model."""
    result = structs.Plan()
    check(library.wl_plan_file(structs.path(path), byref(session_params(params)), byref(result)))
    return result.as_dict()


def _open(function: Callable[..., int], *arguments: Any, **options: Any) -> Handle:
    """Calls a function that opens a model, with the model's parameters after `arguments`."""
    params = filled(structs.ModelParams(), library.wl_model_params_init)
    params.set({name: Device(value) if name == "device" else value for name, value in options.items()})
    return make(library.wl_model_free, function, *arguments, byref(params))


class Model(Closing):
    """A model: weights and description, shared by any number of sessions. `device=Device.CUDA, gpu=N` is GPU number N."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: Device = Device.AUTO,
        gpu: int = 0,
        allow_unused: bool = False,
        copy: bool = False,
        mtp: bool = False,
    ) -> None:
        """Opens a GGUF file or a Hugging Face directory. `allow_unused` also accepts files with tensors that the library does not use,
        `copy` reads the files into memory, so that they may be rewritten, and `mtp` loads the model's MTP block, which drafts."""
        options = {"device": device, "gpu": gpu, "allow_unused": bool(allow_unused), "copy": bool(copy), "mtp": bool(mtp)}
        self._handle = _open(library.wl_model_open, structs.path(path), **options)

    @classmethod
    def builtin(cls: type[M], device: Device = Device.AUTO, gpu: int = 0) -> M:
        """Opens the model that is built into the library."""
        model = cls.__new__(cls)
        model._handle = _open(library.wl_model_builtin, device=device, gpu=gpu)
        return model

    @classmethod
    def from_bytes(cls: type[M], content: Any, device: Device = Device.AUTO, gpu: int = 0, allow_unused: bool = False) -> M:
        """Opens a GGUF file held in memory, as any bytes-like object."""
        model = cls.__new__(cls)
        options = {"device": device, "gpu": gpu, "allow_unused": bool(allow_unused)}
        model._handle = _open(library.wl_model_from_memory, *as_bytes(content), **options)
        return model

    @property
    def info(self) -> dict[str, Any]:
        """The vocabulary, parameters, bytes and special tokens; the tokens that end a generation, and the number of tokens of the longest
        texts in training, None if it is not known or sets no limit."""
        handle, info = self._value, structs.ModelInfo()
        check(library.wl_model_get_info(handle, byref(info)))
        found = info.as_dict()
        ends, count = found.pop("ends"), found.pop("end_count")
        return {**found, "trained_context": info.trained_context or None, "end_tokens": ends[:count]}

    def _text(self, function: Callable[..., int]) -> str:
        """Returns a text owned by the model's handle."""
        handle, text = self._value, ctypes.c_char_p()
        check(function(handle, byref(text)))
        return (text.value or b"").decode()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._text(library.wl_model_name)

    @property
    def device(self) -> str:
        """The device its sessions compute on, with the reason if the library chose it."""
        return self._text(library.wl_model_device)

    @property
    def spec(self) -> dict[str, Any]:
        """The model's dimensions, layer by layer."""
        spec: dict[str, Any] = json.loads(self._text(library.wl_model_spec_json))
        return spec

    @property
    def notes(self) -> list[str]:
        """Remarks about the model's files for the user, each a sentence."""
        return self._text(library.wl_model_notes).splitlines()

    def plan(self, **params: Unpack[SessionOptions]) -> dict[str, Any]:
        """Returns the memory in bytes of a session with these parameters."""
        result = structs.Plan()
        check(library.wl_plan_model(self._value, byref(session_params(params, self._value)), byref(result)))
        return result.as_dict()

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Returns the tokens of a text; with `special`, the names of special tokens become those tokens."""
        return self._tokenize(library.wl_tokenize, text, bool(special))

    def embed_tokenize(self, text: str, task: str | None = None) -> list[int]:
        """Returns the tokens of a text for `Session.embed`: after the prompt of a task that the model's files name, between the tokens that
        the tokenizer puts around a text."""
        return self._tokenize(library.wl_embed_tokenize, text, structs.c_string("task", task.encode()) if task else None)

    def _tokenize(self, function: Any, text: str, option: Any) -> list[int]:
        encoded, count = text.encode(), c_size_t()

        def fill(room: int) -> tuple[int, ctypes.Array[c_uint32]]:
            tokens = (c_uint32 * room)()
            return function(self._value, encoded, len(encoded), option, tokens, room, byref(count)), tokens

        status, tokens = fill(len(encoded) + 16)
        if status == ROOM:
            status, tokens = fill(count.value)
        check(status)
        return tokens[: count.value]

    def detokenize(self, tokens: Iterable[SupportsIndex]) -> bytes:
        """Returns the exact bytes of tokens, which may begin or end inside a character."""
        numbers, length = structs.tokens(tokens), c_size_t()
        check(library.wl_detokenize(self._value, numbers, len(numbers), None, 0, byref(length)))
        room = ctypes.create_string_buffer(length.value + 1)
        check(library.wl_detokenize(self._value, numbers, len(numbers), room, len(room), byref(length)))
        return room.raw[: length.value]

    def render(
        self,
        messages: Iterable[Message],
        tools: Iterable[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Returns the text of a conversation as the model's template writes it. `variables` are more variables of the template, such as
        `enable_thinking=False`."""
        params = filled(structs.RenderParams(), library.wl_render_params_init)
        params.add_generation_prompt = bool(add_generation_prompt)
        params.messages, params.tools = encoded(messages), json.dumps(list(tools)).encode()
        params.variables, length = json.dumps(variables).encode(), c_size_t()
        check(library.wl_chat_render(self._value, byref(params), None, 0, byref(length)))
        room = ctypes.create_string_buffer(length.value + 1)
        check(library.wl_chat_render(self._value, byref(params), room, len(room), byref(length)))
        return room.raw[: length.value].decode()

    def session(self, **params: Unpack[SessionOptions]) -> Session:
        """Makes a session. Parameters are those of wl_session_params and wl_sampler_params, and `logit_bias`, a dict; `store` is a
        Store. Sampling parameters that are not given are those of the model's files."""
        value = self._value
        return Session(make(library.wl_session_free, library.wl_session_new, value, byref(session_params(params, value))))
