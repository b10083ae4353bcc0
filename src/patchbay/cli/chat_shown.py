"""How a session is shown in a terminal: what the model says as it comes, calls and results dimly beside it.

What lives here: frames in, lines out. What the model says goes to standard output and all else to standard error, so that a
script has the answer alone. What does not: the socket (``chat_talk``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TextIO

from patchbay.cli.harmless import harmless, without_begun
from patchbay.legible import one_line

PROMPT: Final = "> "

_SHOWN: Final = 200
_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")


class Shown(Protocol):
    """Shows what a server tells."""

    def frame(self, frame: Mapping[str, Any]) -> None:
        """Show a frame."""

    def note(self, text: str) -> None:
        """Say something beside the talk."""

    def prompt(self) -> None:
        """Say that the user may go on."""

    def typed(self) -> None:
        """Know that the user has ended a line."""

    def end(self) -> None:
        """Leave the cursor at the beginning of a line."""


class AsJson:
    """Each frame as a line of JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def frame(self, frame: Mapping[str, Any]) -> None:
        """Print it."""
        print(json.dumps(frame), file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Nothing: a reader of JSON is told by frames."""

    def prompt(self) -> None:
        """Nothing."""

    def typed(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class AsText:
    """A talk, as people read it. ``prompts``: somebody is typing."""

    def __init__(self, out: TextIO, beside: TextIO, *, prompts: bool, in_colour: bool) -> None:
        self._out = out
        self._beside = beside
        self._prompts = prompts
        self._dim = ("\x1b[2m", "\x1b[0m") if in_colour else ("", "")
        self._mid_line = False
        self._prompted = False
        self._begun = ""  # a sequence for terminals that the model has not ended yet
        self._is_ready = False
        self._shows: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "ready": self._ready,
            "text": self._text,
            "transcript": self._transcript,
            "tool_call": self._tool_call,
            "tool_progress": self._tool_progress,
            "tool_result": self._tool_result,
            "user_output": self._user_output,
            "response_end": self._response_end,
            "connection": self._connection,
            "error": self._error,
            "dropped": self._dropped,
        }

    def frame(self, frame: Mapping[str, Any]) -> None:
        """Show a frame."""
        if (show := self._shows.get(str(frame.get("type")))) is not None:
            show(frame)

    def note(self, text: str) -> None:
        """Say something dimly, on a line of its own."""
        self._end_line()
        begin, end = self._dim
        print(f"{begin}  {_plain(' '.join(text.split()))}{end}", file=self._beside, flush=True)

    def prompt(self) -> None:
        """Show that it is the user's turn."""
        if self._prompted:
            return
        self._end_line()
        if self._prompts:
            self._prompted = True
            print(PROMPT, end="", file=self._beside, flush=True)

    def end(self) -> None:
        """End the line that is begun."""
        self._say("", whole=True)
        self._end_line()

    def typed(self) -> None:
        """The user has ended a line."""
        self._prompted = False

    def _ready(self, _frame: Mapping[str, Any]) -> None:
        self._is_ready = True

    def _text(self, frame: Mapping[str, Any]) -> None:
        self._say(str(frame.get("delta", "")))

    def _transcript(self, frame: Mapping[str, Any]) -> None:
        if frame.get("role") == "user":
            if frame.get("whole"):
                self.note(f"you: {frame.get('text')}")
        elif not frame.get("whole"):
            self._say(str(frame.get("text", "")))

    def _tool_call(self, frame: Mapping[str, Any]) -> None:
        self.note(one_line(f"{frame.get('name')} {frame.get('raw_arguments')}", _SHOWN))

    def _tool_progress(self, frame: Mapping[str, Any]) -> None:
        if frame.get("message"):
            self.note(one_line(f"{frame.get('name')}: {frame.get('message')}", _SHOWN))

    def _tool_result(self, frame: Mapping[str, Any]) -> None:
        self.note(one_line(f"{'!!' if frame.get('is_error') else '->'} {frame.get('content')}", _SHOWN))

    def _user_output(self, frame: Mapping[str, Any]) -> None:
        media = [str(each.get("path")) for each in frame.get("media") or () if isinstance(each, Mapping)]
        self._say("\n".join(filter(None, [str(frame.get("text") or ""), *media])), whole=True)
        self._end_line()

    def _response_end(self, frame: Mapping[str, Any]) -> None:
        self.end()
        if frame.get("status") != "completed":
            self.note(f"({frame.get('status')})")

    def _connection(self, frame: Mapping[str, Any]) -> None:
        if frame.get("state") == "lost" and not frame.get("planned"):
            self.note("(the connection to the model is lost; another is being opened)")

    def _error(self, frame: Mapping[str, Any]) -> None:
        if self._is_ready:  # else it is why there is no session, which the command says when it fails
            self.note(f"error: {error_in(frame)}")

    def _dropped(self, frame: Mapping[str, Any]) -> None:
        if is_missing(frame):
            self.note(f"error: {frame.get('count')} events are missing here, so this is not all that was said")

    def _say(self, text: str, *, whole: bool = False) -> None:
        """Show a piece of what the model says. ``whole``: nothing goes on behind it."""
        text, self._begun = (self._begun + text, "") if whole else without_begun(self._begun + text)
        for number, line in enumerate(text.split("\n")):
            if number:
                print(file=self._out)
                self._mid_line = False
            if line := _plain(line):
                self._prompted = False
                self._mid_line = True
                print(line, end="", file=self._out)
        self._out.flush()

    def _end_line(self) -> None:
        if self._mid_line:
            print(file=self._out, flush=True)
            self._mid_line = False
        elif self._prompted:
            print(file=self._beside, flush=True)
            self._prompted = False


def error_in(frame: Mapping[str, Any]) -> str:
    """Return what an ``error`` frame says."""
    error = frame.get("error")
    return str(error.get("message") if isinstance(error, Mapping) else error)


def is_missing(frame: Mapping[str, Any]) -> bool:
    """Whether a frame says that others are missing: the server could not keep them."""
    return frame.get("type") == "dropped" and frame.get("what") == "events"


def _plain(line: str) -> str:
    """One line without colours either: there are some in which nothing can be seen."""
    return _COLOUR.sub("", harmless(line))
