"""Which files of results a model is shown in a request: those of this turn, the newest, and no more than servers take.

What lives here: the view. What does not: the conversation, which stays whole for whoever keeps it (law 7), and which kinds of
files a model takes at all (``Run.attachments``).

A file that is left out has words in its place, and stays out. Where there are too many, the oldest go, and some more with them:
what a model was sent stays a prefix of what it is sent until that happens again, and its server's prompt cache holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from patchbay.tools.attachments import is_introduction
from patchbay.types import Message

MOST_FILES: Final = 16
"""How many files of results a request has."""

MOST_CHARS: Final = 28 * 1024 * 1024
"""How many characters of base64 they have together: 21 MiB in files."""

LEFT_OUT: Final = (
    f"(It is left out: a request has the newest files of the turn, {MOST_FILES} of {MOST_CHARS * 3 // 4 >> 20} MiB together at "
    "most. To see this one, get it again.)"
)
"""What stands in the place of a file that is not shown (any more)."""

_KEPT: Final = 0.75
"""How much of the limits is left in use where something has to go."""

_Files = dict[int, int]
"""The files of a message that are shown: the place of each among the parts, and its characters."""


class FilesShown:
    """Which files of the results in ``messages`` are shown; ``added`` is told of each message of more."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._shown: dict[int, _Files] = {}
        self._views: dict[int, Message] = {}
        places = [
            place
            for place, message in enumerate(messages)  # (every message of every turn comes here)
            if isinstance(message, dict) and type(message.get("content")) is list and _is_of_results(messages, place)
        ]
        if not places:
            return
        own = set(places)
        asked = max((place for place, each in enumerate(messages) if _role(each) == "user" and place not in own), default=-1)
        for place in places:
            if place > asked:
                self.added(messages, place)
            else:
                self._views[place] = _without(messages[place], {})

    def added(self, messages: Sequence[Message], place: int) -> None:
        """Take up the files of the message at ``place``, which are the newest."""
        files = self._shown[place] = _files_of(messages[place])
        if not _fit((files,), 1):
            count = chars = 0
            for part, size in list(files.items()):
                if count == MOST_FILES or chars + size > MOST_CHARS:
                    del files[part]
                else:
                    count, chars = count + 1, chars + size
            self._views[place] = _without(messages[place], files)
        if _fit(self._shown.values(), 1):
            return
        for older in [each for each in self._shown if each != place]:
            if _fit(self._shown.values(), _KEPT):
                break
            del self._shown[older]
            self._views[older] = _without(messages[older], {})

    def view(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the model is sent them, in a list of its own."""
        view = list(messages)
        for place, message in self._views.items():
            view[place] = message
        return view


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _is_of_results(messages: Sequence[Message], place: int) -> bool:
    """Whether a message shows the files of results; ``patchbay.loop.conversation`` has written it, in this turn or another."""
    first = messages[place]["content"][:1]
    is_behind = place > 0 and _role(messages[place - 1]) == "tool" and _role(messages[place]) == "user"
    return is_behind and bool(first) and is_introduction(_text(first[0]))


def _files_of(message: Message) -> _Files:
    return {at: _chars(part) for at, part in enumerate(message["content"]) if _text(part) is None}


def _text(part: Any) -> Any:
    return part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None


def _chars(part: Any) -> int:
    """Return how many characters a part has, in all the texts of it."""
    if isinstance(part, Mapping):
        return sum(map(_chars, part.values()))
    return len(part) if isinstance(part, str) else 0


def _fit(shown: Iterable[_Files], share: float) -> bool:
    sizes = [size for files in shown for size in files.values()]
    return len(sizes) <= MOST_FILES * share and sum(sizes) <= MOST_CHARS * share


def _without(message: Message, shown: _Files) -> Message:
    """Return a message with words in the place of the files that are not among ``shown``."""
    parts = [
        part if at in shown or _text(part) is not None else {"type": "text", "text": LEFT_OUT}
        for at, part in enumerate(message["content"])
    ]
    return {**message, "content": parts}
