"""Images and files that a tool returns beside its words.

What lives here: finding them in a value, and saying what there is. What does not: which of them a model is shown (the loop's
caller says so, or the model itself), and the user's message that carries them (``patchbay.loop``): a ``tool`` message can only
hold text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.types import Attachment

KINDS = frozenset({"image", "audio", "file"})
"""What a model may be able to be shown."""


def checked_kinds(kinds: Collection[str]) -> frozenset[str]:
    """Return the kinds of attachments, or raise ConfigurationError for one that does not exist."""
    if isinstance(kinds, str) or not set(kinds) <= KINDS:
        raise ConfigurationError(f"attachments must be a list of {', '.join(sorted(KINDS))}, not {kinds!r}.")
    return frozenset(kinds)


def attachments_of(value: Any) -> tuple[Attachment, ...]:
    """Return the attachments among a tool's value: itself, or members of the list, tuple or dict that it is; no deeper."""
    if isinstance(value, Attachment):
        return (value,)
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return tuple(item for item in value if isinstance(item, Attachment))
    return ()


def described(content: str, attachments: Sequence[Attachment], shown: Sequence[Attachment]) -> str:
    """Return ``content`` with a line that says which attachments the model is shown, and which not."""
    words = []
    if shown:
        words.append(f"{len(shown)} attachment{'s' if len(shown) > 1 else ''}: see below.")
    if hidden := sorted({each.kind for each in attachments if each not in shown}):
        words.append(f"You are not shown attachments of the kind {' and '.join(hidden)}.")
    return f"{content}\n({' '.join(words)})"
