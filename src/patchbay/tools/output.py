"""What a tool gives back when its words for the model are not all: something for the user, files, or the whole answer.

What lives here: the shape, and the error that one with ``is_error`` becomes. What does not: what a ref stands for
(``patchbay.media``), and how the user is reached (whoever runs the turn).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from patchbay.errors import ToolError
from patchbay.tools.attachments import attachments_of
from patchbay.tools.results import render_result, well_formed
from patchbay.types import Attachment


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a call came to, told to the model and to the user apart.

    ``for_llm`` is what the model is shown, ``for_user`` what the user is (not where ``silent``). ``media`` are refs
    (``media://...``) of files that go along: to the model, or with ``response_handled`` to the user, who has the answer then: if
    that goes for every call of a reply, the model is not asked again. ``artifact_tags`` tell the model of files by their path.
    ``is_async`` says that the work goes on and this only tells of its beginning.
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
    """Images and files that a tool of this program returned, as they are; on no wire."""

    @property
    def shown(self) -> str:
        """The text for the user, "" where there is none."""
        return "" if self.silent else self.for_user

    @property
    def text(self) -> str:
        """The text for the model, with what it has to know of files and of an answer that is out already."""
        text = self.for_llm
        if self.response_handled:
            text = _with_note(text, _DELIVERED)
        if self.artifact_tags:
            tags = f"Local artifact paths: {' '.join(self.artifact_tags)}"
            if tags not in text:
                text = _with_note(text, f"{tags}\n{_ARTIFACTS}")
        return well_formed(text)


class OutputError(ToolError):
    """A tool gave back a ToolOutput that is an error; the model is shown its text as it is."""

    def __init__(self, output: ToolOutput, *, tool_name: str = "") -> None:
        super().__init__(output.for_llm or "the tool failed and did not say why", tool_name=tool_name)
        self.output = output

    @property
    def for_model(self) -> str:
        """The tool's own words."""
        return self.output.text or f"Error: {self}"


def as_output(value: Any) -> ToolOutput:
    """Return what a tool returned as a ToolOutput: itself, or one whose words for the model are all that there is."""
    if isinstance(value, ToolOutput):
        return value
    return ToolOutput(render_result(value), attachments=attachments_of(value))


def changed_output(output: ToolOutput, changes: Any) -> ToolOutput:
    """Return ``output`` with what is given in place of it: a ToolOutput, a text for the model, or a mapping of some members.

    Raises TypeError for anything else, and for members of another type than they have; unknown members are passed over.
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
