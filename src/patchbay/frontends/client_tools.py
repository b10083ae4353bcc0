"""Tools that clients run and whose schemas their vendors publish: a request has only their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Tool = Mapping[str, Any]
"""A ``description``, and the ``parameters``, a JSON Schema."""

_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_NUMBER: Final = {"type": "integer"}
_NUMBERS: Final = {"type": "array", "items": _NUMBER}


def _tool(description: str, required: str, **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": required.split()}
    return {"description": description, "parameters": schema}


def _one_of(*values: str) -> Mapping[str, Any]:
    return {"type": "string", "enum": values}


def _editor(what: str, *commands: str, inserted: str = "insert_text", **more: Any) -> Tool:
    return _tool(
        f"{what} 'create' writes 'file_text'; 'str_replace' replaces 'old_str', which must occur exactly once, with 'new_str'; "
        f"'insert' puts '{inserted}' after the line 'insert_line'; 'view' shows a folder, or a file from the first to the last "
        "line of 'view_range'.",
        "command", command=_one_of("view", "create", "str_replace", "insert", *commands), path=_TEXT, file_text=_TEXT,
        old_str=_TEXT, insert_line=_NUMBER, view_range=_NUMBERS, **{"new_str": _TEXT, inserted: _TEXT, **more},
    )  # fmt: skip


_ANTHROPIC: Final = {
    "bash": _tool("Run a command in a bash session; 'restart' begins a new one.", "", command=_TEXT, restart={"type": "boolean"}),
    "text_editor": _editor("View and edit files."),
    "old text_editor": _editor("View and edit files.", "undo_edit", inserted="new_str"),
    "memory": _editor(
        "Read and write notes for later, as files below /memories; 'rename' takes 'old_path' and 'new_path'.",
        "delete", "rename", old_path=_TEXT, new_path=_TEXT,
    ),
}  # fmt: skip

OPENAI: Final = {
    "local_shell": _tool(
        "Run a program on the user's machine.", "command",
        command={**_TEXTS, "description": "The program and its arguments."},
        working_directory=_TEXT, env={"type": "object", "additionalProperties": _TEXT}, timeout_ms=_NUMBER,
    ),
    "shell": _tool("Run shell commands.", "commands", commands=_TEXTS, timeout_ms=_NUMBER, max_output_length=_NUMBER),
    "apply_patch": _tool(
        "Create, update or delete a file. The diff of an update has hunks that begin with '@@', of lines that begin with ' ', "
        "'-' or '+'; that of a new file has only lines that begin with '+'. It has no headers with file names.",
        "type path", type=_one_of("create_file", "update_file", "delete_file"), path=_TEXT, diff=_TEXT,
    ),
}  # fmt: skip
"""OpenAI's, by their types."""


def anthropic_tool(kind: Any) -> Tool | None:
    """Return one of Anthropic's tools by its type, which has a date; None for one that Anthropic runs, or that is unknown."""
    name, _, date = kind.rpartition("_") if isinstance(kind, str) else ("", "", "")
    return _ANTHROPIC.get("old text_editor" if name == "text_editor" and date < "20250429" else name)
