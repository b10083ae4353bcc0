"""The process that the doctor looks at: all that it prints is counted. What is asked of it, and why, is the doctor's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchbay.hooks.process.calls import NO_REPLY
from patchbay.hooks.process.child import HookProcess
from patchbay.hooks.process.errors import HookProcessError
from patchbay.hooks.process.spec import ProcessSpec


class SilentError(HookProcessError):
    """No answer has come in time."""


class Strays:
    """What was printed that is no answer: how many lines, the first, and the first since ``begin``."""

    def __init__(self) -> None:
        self.count = 0
        self.first = self.recent = ""
        self.counts_replies = True
        """Whether a reply that cannot be read counts: to what is no request there may be any, or has a check of its own."""

    def begin(self) -> None:
        """Look at what comes from now on."""
        self.recent = ""

    def put(self, text: str) -> None:
        """Take note of a line."""
        if text.startswith(NO_REPLY) and not self.counts_replies:
            return
        self.count += 1
        self.first = self.first or text
        self.recent = self.recent or text


class Patient(HookProcess):
    """A process whose output is counted."""

    def __init__(self, spec: ProcessSpec, strays: Strays) -> None:
        super().__init__(spec, stray=strays.put, stderr=lambda _text: None)
        self.lines = 0

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Count the lines, and read them."""
        if fd == 1:
            self.lines += data.count(b"\n")
        super().pipe_data_received(fd, data)


class Case:
    """The params of a request, as what a view is of."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def member(self, name: str, _point: str) -> Any:
        """Return a member; what is left out is empty."""
        empty: Any = "" if name == "model" else {} if name == "options" else []
        return self._params.get(name, empty)
