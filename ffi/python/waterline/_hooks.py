"""The functions that a generation calls at each token."""

import collections
import ctypes

from . import _library as lib


class Token(collections.namedtuple("Token", ["id", "logprob", "text"])):
    """A token that was generated, its log-probability by the model alone if `logprobs` was set, and the text that it completes."""


class Hooks:
    """The functions of a generation as C calls them. An exception cannot pass through C: one that is raised stops the generation, and
    is raised again when the call returns."""

    def __init__(self, on_token, on_logits, logprobs):
        self.raised, self._on_token, self._on_logits, self._logprobs = None, on_token, on_logits, logprobs
        self.token = lib.TOKEN(self._token) if on_token or on_logits else lib.TOKEN()
        self.logits = lib.LOGITS(self._logits) if on_logits else lib.LOGITS()

    def _token(self, token, logprob, text, length, _):
        if self.raised is None and self._on_token:
            try:
                text = ctypes.string_at(text, length).decode()
                return self._on_token(Token(token, logprob if self._logprobs else None, text)) is False
            except BaseException as raised:
                self.raised = raised
        return self.raised is not None

    def _logits(self, first, count, _):
        if self.raised is None:
            try:
                import numpy

                self._on_logits(numpy.ctypeslib.as_array((ctypes.c_float * count).from_address(first)))
            except BaseException as raised:
                self.raised = raised

    def check(self):
        """Raises what was raised."""
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
