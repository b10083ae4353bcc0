"""Arguments in round brackets behind a name that a wrapper reads in its own way: ``brave_search.call(query="tides")``."""

from __future__ import annotations

from patchbay.formats.engine.source import Steps
from patchbay.formats.parts import Parts
from patchbay.formats.values.pyreader import PythonReader
from patchbay.formats.values.pyvalues import arguments_json


class BracketArguments:
    """Reads what a Python call has in its brackets."""

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self._values = PythonReader(parts.source, parts.emitter.note)

    def fits(self) -> Steps[bool]:
        """Whether a bracket opens at ``pos``."""
        return (yield from self.source.peek()) == "("

    def read(self, name: str) -> Steps[None]:
        """Read to the closing bracket and tell the call. Raises NotACall, CutOff."""
        arguments = yield from self._values.arguments()
        self.calls.start(name).append(arguments_json(arguments, self.rules.types(name)))
        self.calls.end()
