"""The coding agents that tests/external/clients.py runs: their packages, the calls that the model writes for them, and their arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

TASK = "Change the colour in note.txt to green."
BEFORE, AFTER = "The colour is blue.\n", "The colour is green.\n"
SHOW = "tr a-z A-Z < note.txt > shown.txt"
PATCH = f"*** Begin Patch\n*** Update File: note.txt\n@@\n-{BEFORE}+{AFTER}*** End Patch\n"


@dataclass(frozen=True)
class Place:
    """Where an agent runs: its folder and its home."""

    folder: Path
    home: Path

    @property
    def note(self) -> str:
        """The path of the file of the task."""
        return str(self.folder / "note.txt")


@dataclass(frozen=True)
class Agent:
    """A coding agent. ``client`` is its name for ``--print-env``.

    ``replies`` are what the model writes, step by step; ``arguments`` follow its command. ``has_tools``: its requests have tools, but
    those beside the task, for a title, say. ``beside`` are packages that its own requirements leave out.
    """

    title: str
    client: str
    registry: Literal["npm", "PyPI"]
    package: str
    protocol: str
    replies: Callable[[Place], list[str]]
    arguments: list[str]
    model: str = "m"
    has_tools: bool = True
    beside: tuple[str, ...] = ()


def _fenced(name: str, arguments: Mapping[str, Any]) -> str:
    return "```tool_call\n" + json.dumps({"name": name, "arguments": arguments}) + "\n```"


def _hermes(name: str, arguments: Mapping[str, Any]) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def _mistral(name: str, arguments: Mapping[str, Any]) -> str:
    return "[TOOL_CALLS]" + json.dumps([{"name": name, "arguments": arguments}])


def _qwen_coder(name: str, arguments: Mapping[str, Any]) -> str:
    members = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{members}</function>\n</tool_call>"


_FAMILIES = (_fenced, _hermes, _mistral, _qwen_coder)


def _calls(*calls: tuple[str, dict[str, Any]]) -> list[str]:
    """The texts of these calls, each in the format of another family."""
    return [family(*call) for family, call in zip(_FAMILIES, calls, strict=False)]


_COMMANDS = ("cat note.txt", "sed -i s/blue/green/ note.txt", SHOW, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
_AIDER_EDITS = {
    "whole": f"note.txt\n```\n{AFTER}```\n",
    "diff": f"note.txt\n```\n<<<<<<< SEARCH\n{BEFORE}=======\n{AFTER}>>>>>>> REPLACE\n```\n",
    "diff-fenced": f"```\nnote.txt\n<<<<<<< SEARCH\n{BEFORE}=======\n{AFTER}>>>>>>> REPLACE\n```\n",
    "udiff": f"```diff\n--- note.txt\n+++ note.txt\n@@ ... @@\n-{BEFORE}+{AFTER}```\n",
    "patch": PATCH,
}
"""An edit of the note in each of aider's edit formats."""


def _mini(title: str, replies: list[str], arguments: list[str], *, has_tools: bool) -> Agent:
    return Agent(
        title, "mini-swe-agent", "PyPI", "mini-swe-agent", "chat completions", lambda _: replies,
        ["--task", TASK, "--yolo", "--exit-immediately", *arguments],
        has_tools=has_tools,
        beside=("mcp",),  # LiteLLM imports it as soon as a request has tools
    )  # fmt: skip


def _aider(edit_format: str, edit: str) -> Agent:
    arguments = ["--message", TASK, "note.txt", "--edit-format", edit_format, "--yes-always", "--no-git", "--no-pretty"]
    arguments += ["--no-check-update", "--no-show-model-warnings", "--auto-test", "--test-cmd", SHOW]
    return Agent(
        f"aider ({edit_format})", "aider", "PyPI", "aider-chat", "chat completions", lambda _: [edit], arguments, has_tools=False
    )


_AGENTS = [
    Agent(
        "Codex", "codex", "npm", "@openai/codex", "Responses",
        lambda _: _calls(("exec_command", {"cmd": "cat note.txt"}), ("apply_patch", {"input": PATCH}), ("exec_command", {"cmd": SHOW})),
        ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK],
        model="gpt-5.5",
    ),
    Agent(
        "Claude Code", "claude", "npm", "@anthropic-ai/claude-code", "Messages",
        lambda place: _calls(
            ("Read", {"file_path": place.note}),
            ("Edit", {"file_path": place.note, "old_string": "blue", "new_string": "green"}),
            ("Bash", {"command": SHOW, "description": "show"}),
        ),
        ["-p", TASK, "--allowedTools", "Bash,Read,Edit", "--output-format", "stream-json", "--verbose"],
    ),
    Agent(
        "gemini-cli", "gemini", "npm", "@google/gemini-cli", "generateContent",
        lambda place: _calls(
            ("read_file", {"file_path": place.note}),
            ("replace", {"file_path": place.note, "old_string": "blue", "new_string": "green", "instruction": "Make it green."}),
            ("run_shell_command", {"command": SHOW}),
        ),
        ["-p", TASK, "--yolo", "--skip-trust"],
    ),
    Agent(
        "qwen-code", "qwen", "npm", "@qwen-code/qwen-code", "chat completions",
        lambda place: _calls(
            ("read_file", {"file_path": place.note}),
            ("edit", {"file_path": place.note, "old_string": "blue", "new_string": "green"}),
            ("run_shell_command", {"command": SHOW, "is_background": False}),
        ),
        ["-p", TASK, "--yolo"],
    ),
    Agent(
        "opencode", "opencode", "npm", "opencode-ai", "chat completions",
        lambda place: _calls(
            ("read", {"filePath": place.note}),
            ("edit", {"filePath": place.note, "oldString": "blue", "newString": "green"}),
            ("bash", {"command": SHOW, "description": "show"}),
        ),
        ["run", TASK],
    ),
    Agent(
        "Continue (cn)", "continue", "npm", "@continuedev/cli", "chat completions",
        lambda place: _calls(
            ("Read", {"filepath": place.note}),
            ("Edit", {"file_path": place.note, "old_string": "blue", "new_string": "green"}),
            ("Bash", {"command": SHOW}),
        ),
        ["-p", TASK, "--auto"],
    ),
    _mini("mini-swe-agent", _calls(*(("bash", {"command": command}) for command in _COMMANDS)), [], has_tools=True),
    _mini(
        "mini-swe-agent (text)",
        [f"```mswea_bash_command\n{command}\n```" for command in _COMMANDS],
        ["--config", "mini_textbased.yaml", "--model-class", "litellm_textbased"],
        has_tools=False,
    ),
    *(_aider(edit_format, edit) for edit_format, edit in _AIDER_EDITS.items()),
]  # fmt: skip
AGENTS = {
    client: [each for each in _AGENTS if each.client == client] for client in dict.fromkeys(each.client for each in _AGENTS)
}
"""The agents by the names of their clients; one that edits in several ways has a row for each."""
