"""Output for the model and for the user, and files that are attached to it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from patchbay.errors import ConfigurationError, ToolError
from patchbay.tools.results import render_result, well_formed
from patchbay.types import Attachment, Illustrated

KINDS = frozenset({"image", "audio", "file"})
"""The kinds of attachments."""

_INTRODUCTION = re.compile(r"\(Attachment \d+ of the result of call .*\. It is data that the tool returned\.\)", re.DOTALL)


def checked_kinds(kinds: Collection[str]) -> frozenset[str]:
    """Return the kinds of attachments. Raises ConfigurationError for an unknown kind."""
    if isinstance(kinds, str) or not set(kinds) <= KINDS:
        raise ConfigurationError(f"attachments must be a list of {', '.join(sorted(KINDS))}, not {kinds!r}.")
    return frozenset(kinds)


def attachments_of(value: Any) -> tuple[Attachment, ...]:
    """Return the attachments of a tool's value: itself, or the members of a list, tuple or dict; no deeper.

    Raises TypeError for one that cannot be sent (text instead of bytes).
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
    """Return the text before an attachment in the user's message. Numbers count from 1 in each result."""
    return f"(Attachment {number} of the result of call {call_id}. It is data that the tool returned.)"


def is_introduction(text: Any) -> bool:
    """Whether a text is the introduction of an attachment."""
    return isinstance(text, str) and _INTRODUCTION.fullmatch(text) is not None


def described(content: str, attachments: Sequence[Attachment], accepted: Sequence[Attachment]) -> str:
    """Return ``content`` with a note on the attachments that the model gets, and on those that it does not."""
    notes = []
    if accepted:
        notes.append(f"{len(accepted)} attachment{'s' if len(accepted) > 1 else ''}: see below.")
    if hidden := sorted({each.kind for each in attachments if each not in accepted}):
        notes.append(f"You are not shown attachments of the kind {' and '.join(hidden)}.")
    return f"{content}\n({' '.join(notes)})"


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A tool's output with separate parts for the model and for the user.

    ``for_llm`` is the model's text, ``for_user`` the user's (ignored if ``silent``). ``media`` are refs (``media://...``) of
    files for the model, or with ``response_handled`` for the user, who then has the answer: if that holds for every call of a
    reply, the model is not asked again. ``artifact_tags`` name files to the model by their path. ``is_async``: the work goes on.
    """

    for_llm: str = ""
    for_user: str = ""
    silent: bool = False
    is_error: bool = False
    is_async: bool = False
    media: tuple[str, ...] = ()
    artifact_tags: tuple[str, ...] = ()
    response_handled: bool = False
    attachments: tuple[Attachment, ...] = ()
    """Images and files that a tool of this process returned; never serialised."""

    @property
    def shown(self) -> str:
        """The text for the user, "" if there is none."""
        return "" if self.silent else self.for_user

    @property
    def text(self) -> str:
        """The text for the model, with notes on files and on an answer that the user already has."""
        text = self.for_llm
        if self.response_handled:
            text = _with_note(text, _DELIVERED)
        if self.artifact_tags:
            tags = f"Local artifact paths: {' '.join(self.artifact_tags)}"
            if tags not in text:
                text = _with_note(text, f"{tags}\n{_ARTIFACTS}")
        return well_formed(text)


class OutputError(ToolError):
    """A tool returned a ToolOutput that is an error; the model gets its text unchanged."""

    def __init__(self, output: ToolOutput, *, tool_name: str = "") -> None:
        super().__init__(output.for_llm or "the tool failed and did not say why", tool_name=tool_name)
        self.output = output

    @property
    def for_model(self) -> str:
        """The tool's own text."""
        return self.output.text or f"Error: {self}"


def as_output(value: Any) -> ToolOutput:
    """Return a tool's value as a ToolOutput: itself, or one with a text for the model only."""
    if isinstance(value, ToolOutput):
        return value
    return ToolOutput(render_result(value), attachments=attachments_of(value))


def changed_output(output: ToolOutput, changes: Any) -> ToolOutput:
    """Return ``output`` with ``changes``: another ToolOutput, a text for the model, or a mapping of some members.

    Raises TypeError for anything else, and for members of a wrong type; ignores unknown members.
    """
    if isinstance(changes, ToolOutput):
        return changes
    if isinstance(changes, str):
        return replace(output, for_llm=changes)
    if not isinstance(changes, Mapping):
        raise TypeError(f"a tool's result must be an object or a text, not {type(changes).__name__}")
    return replace(output, **{name: _checked(name, changes[name]) for name in _KINDS if changes.get(name) is not None})


def _checked(name: str, value: Any) -> Any:
    kind = _KINDS[name]
    if kind is tuple:
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise TypeError(f"{name} must be a list of texts")
    if type(value) is not kind:
        raise TypeError(f"{name} must be {'true or false' if kind is bool else 'a text'}, not {type(value).__name__}")
    return value


_KINDS: dict[str, type] = {
    "for_llm": str, "for_user": str, "silent": bool, "is_error": bool, "is_async": bool,
    "media": tuple, "artifact_tags": tuple, "response_handled": bool,
}  # fmt: skip
_DELIVERED = "(The user has been given this output. Do not call a tool to deliver it again.)"
_ARTIFACTS = "(These files are on this machine; a tool that sends files to the user can be given their paths.)"


def _with_note(text: str, note: str) -> str:
    return text if note in text else f"{text}\n{note}" if text else note
