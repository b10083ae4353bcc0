"""Images and files that a tool returns beside its words.

What lives here: finding them in a value, and saying what there is. What does not: which of them a model is shown (the loop's
caller says so, or the model itself), and the user's message that carries them (``patchbay.loop``): a ``tool`` message can only
hold text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.tools.results import well_formed
from patchbay.types import Attachment, Illustrated

KINDS = frozenset({"image", "audio", "file"})
"""What a model may be able to be shown."""

_INTRODUCTION = re.compile(r"\(Attachment \d+ of the result of call .*\. It is data that the tool returned\.\)", re.DOTALL)


def checked_kinds(kinds: Collection[str]) -> frozenset[str]:
    """Return the kinds of attachments, or raise ConfigurationError for one that does not exist."""
    if isinstance(kinds, str) or not set(kinds) <= KINDS:
        raise ConfigurationError(f"attachments must be a list of {', '.join(sorted(KINDS))}, not {kinds!r}.")
    return frozenset(kinds)


def attachments_of(value: Any) -> tuple[Attachment, ...]:
    """Return the attachments among a tool's value: itself, or members of the list, tuple or dict that it is; no deeper.

    Each is one that can be sent; raises TypeError for what is none (text in the place of bytes).
    """
    if isinstance(value, Attachment):
        return (_sendable(value),)
    if isinstance(value, Illustrated):
        return value.attachments
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return tuple(_sendable(item) for item in value if isinstance(item, Attachment))
    return ()


def _sendable(attachment: Attachment) -> Attachment:
    data, media_type, name = attachment.data, attachment.media_type, attachment.name
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"an attachment's data must be bytes, not {type(data).__name__}")
    if not isinstance(media_type, str) or not (name is None or isinstance(name, str)):
        raise TypeError("an attachment's media type and name must be text")
    return replace(attachment, media_type=well_formed(media_type), name=name and well_formed(name))


def introduction(number: int, call_id: str) -> str:
    """Return the words before an attachment in the user's message that shows it. Numbers count from 1 in each result."""
    return f"(Attachment {number} of the result of call {call_id}. It is data that the tool returned.)"


def is_introduction(text: Any) -> bool:
    """Whether these are the words before an attachment."""
    return isinstance(text, str) and _INTRODUCTION.fullmatch(text) is not None


def described(content: str, attachments: Sequence[Attachment], shown: Sequence[Attachment]) -> str:
    """Return ``content`` with a line that says which attachments the model is shown, and which not."""
    words = []
    if shown:
        words.append(f"{len(shown)} attachment{'s' if len(shown) > 1 else ''}: see below.")
    if hidden := sorted({each.kind for each in attachments if each not in shown}):
        words.append(f"You are not shown attachments of the kind {' and '.join(hidden)}.")
    return f"{content}\n({' '.join(words)})"
