"""The arguments of a native call, read as those of a call in text: valid JSON unchanged, damaged JSON repaired."""

from __future__ import annotations

import json
import re
from typing import Final, Literal

from patchbay.formats.codecs.json import is_object, object_text
from patchbay.formats.source import MalformedCall, Source, Steps, Truncated, discard, marker_set
from patchbay.formats.values.json_stream import JsonReader
from patchbay.formats.values.json_strict import json_string

_MOST_AHEAD: Final = 64
_HELD_BACK: Final = re.compile(
    r"[ \t\r\n]*,?[ \t\r\n]*"
    r'(?:"|\\(?:u[0-9a-fA-F]{0,3})?|-?[0-9][0-9.eE+-]*|-|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?)?'
    r"[ \t\r\n]*"
)
"""What the reader may hold back of valid JSON: behind a quote, a number or a comma it looks ahead, in case they need a repair."""
_FENCE: Final = "\n```"
"""Ends a value, which closes its open brackets; within a string it ends nothing."""
_NO_STOPS: Final = marker_set(())


class ArgumentsReader:
    """Reads the arguments of one call in pieces.

    ``text_parameter`` is the tool's only parameter if that takes plain text (``ToolSpec``). ``state``: "open" until they are
    known to be complete, to be no JSON object ("invalid"), or to be cut off ("cut"). ``text`` is their JSON so far; what was
    read, if they are invalid. An object's pieces come out as they go in; anything else is held back until ``close``, and becomes
    an object if it is a string that holds one, nothing at all, or the text that the tool takes.
    """

    def __init__(self, text_parameter: str | None = None) -> None:
        self.state: Literal["open", "complete", "cut", "invalid"] = "open"
        self.began = False
        """They begin like an object."""
        self._text_parameter = text_parameter
        self._raw: list[str] = []
        self._out: list[str] = []
        self._unread = 0
        """Characters that came in and did not come out of the reader; counted up to the first repair."""
        self._ahead = ""
        """Text that was passed on while the reader still holds it back."""
        self._is_valid = True
        self._source = Source()
        self._sink: list[str] = []
        self._steps: Steps[None] | None = None

    @property
    def text(self) -> str:
        """The JSON so far, or what was read."""
        return "".join(self._out if self.began and self.state != "invalid" else self._raw)

    def feed(self, text: str) -> str:
        """Read a piece; return the JSON that may be passed on."""
        self._raw.append(text)
        if self.state != "open":
            return ""  # behind the object, or behind what cannot be repaired
        if self._steps is None:
            if text[-1:] == "}" and len(self._raw) == 1 and is_object(text):
                self.state, self.began, self._out = "complete", True, self._raw
                return text
            begin = text.lstrip() if len(self._raw) == 1 else "".join(self._raw).lstrip()
            if begin[:1] != "{":
                return ""
            self.began = True
            text = "".join(self._raw)
            reader = JsonReader(self._source, self._note_repair)
            reader.stops = _NO_STOPS  # the value ends with the text: nothing that is missing is invented
            self._steps = reader.value(self._sink)
        source = self._source
        self._unread += len(text)
        if source.fast_argument is not None and source.pos == len(source.buf):
            piece = source.fast_argument(text)
            if piece is not None:
                source.skip_ahead(text)
                return self._pass_on(piece)
        source.push(text)
        return self._advance()

    def close(self, *, cut: bool) -> str:
        """End the arguments; return the rest of their JSON. ``cut``: the model was stopped, and did not end them itself."""
        if self.state != "open":
            return ""
        if self._steps is None:
            return self._close_other(cut=cut)
        if cut:
            self.state = "cut"
            return ""
        self._source.push(_FENCE)
        self._source.ended = True
        return self._advance()

    def _note_repair(self, _kind: str) -> None:
        self._is_valid = False

    def _advance(self) -> str:
        assert self._steps is not None
        try:
            next(self._steps)
        except StopIteration:
            self.state = "complete"
        except (Truncated, MalformedCall):
            self.state = "invalid"
            return ""
        piece = "".join(self._sink)
        self._sink.clear()
        return self._pass_on(piece)

    def _pass_on(self, piece: str) -> str:
        """Return what may be passed on after the reader's next piece: that, and what it holds back of valid JSON."""
        self._unread -= len(piece)
        ahead = self._ahead
        if not ahead:
            new = piece
        elif piece.startswith(ahead):
            new, self._ahead = piece[len(ahead) :], ""
        elif ahead.startswith(piece):
            new, self._ahead = "", ahead[len(piece) :]
        else:
            self.state = "invalid"  # what was passed on as valid JSON is now read otherwise
            return ""
        if self.state == "open" and self._is_valid and len(self._ahead) < self._unread <= _MOST_AHEAD:
            rest = self._raw[-1][-self._unread :] if self._unread <= len(self._raw[-1]) else "".join(self._raw)[-self._unread :]
            if _HELD_BACK.fullmatch(rest):
                new += rest[len(self._ahead) :]
                self._ahead = rest
        self._out.append(new)
        return new

    def _close_other(self, *, cut: bool) -> str:
        """End arguments that do not begin like an object."""
        text = "".join(self._raw).strip()
        if text[:1] == '"':
            try:
                text = json.loads(text)
            except (ValueError, RecursionError):
                self.state = "cut" if cut else "invalid"
                return ""
        arguments = object_text(text, discard)
        if arguments in ("", "null"):
            arguments = "{}"
        elif self._text_parameter is not None and not cut and not is_object(arguments):
            arguments = f"{{{json_string(self._text_parameter)}: {json_string(text)}}}"
        self.state = "complete" if is_object(arguments) else "cut" if cut else "invalid"
        if self.state != "complete":
            return ""
        self._raw = [arguments]
        return arguments
