"""Converts parameters by name to the library's structs."""

from __future__ import annotations

import ctypes
from ctypes import c_uint32
from typing import TYPE_CHECKING, Any, Iterable, Mapping, SupportsIndex

from . import _structs as structs
from ._hooks import Hooks, OnLogits, OnToken
from ._library import Handle, check, filled, library

if TYPE_CHECKING:
    from typing import TypedDict

    from ._names import Cache, OnFull, Pooling
    from ._store import Store

    class SamplerOptions(TypedDict, total=False):
        """How tokens are chosen."""

        temperature: float | None
        top_k: int | None
        top_p: float | None
        min_p: float | None
        repetition_penalty: float | None
        frequency_penalty: float | None
        presence_penalty: float | None
        penalty_window: int | None
        seed: int | None
        logit_bias: Mapping[int, float] | None

    class SessionOptions(SamplerOptions, total=False):
        """The memory, threads and drafts of a session, and how it chooses tokens."""

        threads: int | None
        context: int | None
        history: int | None
        chunk: int | None
        marks: int | None
        cache: Cache | None
        on_full: OnFull | None
        exact: bool | None
        keep: int | None
        store: Store | None
        lookup: int | None
        mtp: int | None

    class EmbedOptions(TypedDict, total=False):
        """How the vector of a text is made."""

        pooling: Pooling | None
        normalize: bool | None
        dimensions: int | None

    class GenerateOptions(TypedDict, total=False):
        """The limits and callbacks of a generation."""

        max_tokens: int | None
        stop: str | Iterable[str]
        stop_tokens: Iterable[int]
        ignore_end: bool
        logprobs: bool
        thought_tokens: int | None
        on_token: OnToken | None
        on_logits: OnLogits | None


_BIAS = {"bias", "bias_count"}
_SAMPLER = {name for name, _ in structs.SamplerParams._fields_} - {"size", "reserved"} - _BIAS | {"logit_bias"}
_SESSION = {name for name, _ in structs.SessionParams._fields_} - {"size", "sampler", "reserved"}


def _known(values: Mapping[str, Any], names: set[str]) -> None:
    unknown = sorted(values.keys() - names)
    if unknown:
        raise TypeError(f"unknown parameters {unknown}; known are {sorted(names)}")


def sampler_params(values: Mapping[str, Any], params: structs.SamplerParams) -> structs.SamplerParams:
    """Returns the sampler's parameters: `values` override those of `params`."""
    _known(values, _SAMPLER)
    bias = values.get("logit_bias")
    if bias is not None:
        entries = [structs.LogitBias(structs.whole("token", token, c_uint32), value) for token, value in bias.items()]
        params.bias, params.bias_count = (structs.LogitBias * len(entries))(*entries), len(entries)
    return params.set({name: value for name, value in values.items() if name != "logit_bias"})


def embed_params(**values: Any) -> structs.EmbedParams:
    """Returns the parameters of a vector."""
    _known(values, {"pooling", "normalize", "dimensions"})
    return filled(structs.EmbedParams(), library.wl_embed_params_init).set(values)


def session_params(values: Mapping[str, Any], model: Handle | None = None) -> structs.SessionParams:
    """Returns the parameters of a session, on a model if it is open, and of its sampler."""
    _known(values, _SAMPLER | _SESSION)
    params = filled(structs.SessionParams(), library.wl_session_params_init)
    sampler = structs.SamplerParams()
    if model is None:
        filled(sampler, library.wl_sampler_params_init)
    else:
        check(library.wl_model_get_sampler(model, ctypes.byref(sampler)))
    sampler_params({name: value for name, value in values.items() if name in _SAMPLER}, sampler)
    params.sampler = ctypes.pointer(sampler)
    own = {name: value for name, value in values.items() if name in _SESSION}
    if own.get("store") is not None:
        # The parameters hold the handle, because another thread may close the store.
        params.handle = own["store"]._value
        own["store"] = params.handle._as_parameter_
    return params.set(own)


def generate_params(
    max_tokens: int | None = None,
    stop: str | Iterable[str] = (),
    stop_tokens: Iterable[SupportsIndex] = (),
    ignore_end: bool = False,
    logprobs: bool = False,
    thought_tokens: int | None = None,
    on_token: OnToken | None = None,
    on_logits: OnLogits | None = None,
) -> structs.GenerateParams:
    """Returns the parameters of a generation, which hold its callbacks."""
    params = filled(structs.GenerateParams(), library.wl_generate_params_init)
    params.set({"max_tokens": max_tokens, "thought_tokens": thought_tokens})
    texts = [structs.c_string("stop", text.encode()) for text in ([stop] if isinstance(stop, str) else stop)]
    params.stop, params.stop_count = (ctypes.c_char_p * len(texts))(*texts), len(texts)
    tokens = structs.tokens(stop_tokens)
    params.stop_tokens, params.stop_token_count = tokens, len(tokens)
    params.ignore_end, params.logprobs = bool(ignore_end), bool(logprobs)
    params.hooks = Hooks(on_token, on_logits, logprobs)
    params.on_token, params.on_logits = params.hooks.token, params.hooks.logits
    return params
