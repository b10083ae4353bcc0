"""The requests of the benchmark, and the check of what a model called for them.

``requests.json`` holds tool sets, named sets of requests that need one call, and named sets of chats that need none. Each argument
of an expected call lists all values that are equally right; null among them: the argument may be absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs

from bench.fidelity.corpora import BFCL, lines, scorer
from bench.places import UnavailableError

FILE = Path(__file__).with_name("requests.json")
QUESTIONS = BFCL.with_name("questions.jsonl")
"""The users' questions of BFCL (id, question): the recordings hold only what models wrote."""

Call = tuple[str, str]
"""The name and the JSON text of the arguments, as a response has them."""


@dataclass(frozen=True)
class Verdict:
    """What is right about the calls of one answer."""

    well_formed: bool = False
    right_tool: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Chat:
    """A message that needs none of the offered tools."""

    id: str
    text: str
    tools: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Request(Chat):
    """A message that needs one call of the tool ``name``."""

    name: str
    accepted: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    recorded: Mapping[str, Any] | None = None
    """The row of BFCL, whose own scorer decides then."""

    def judge(self, calls: Sequence[Call]) -> Verdict:
        """Check the calls of an answer; only one call can be the right one."""
        read = [(name, _object(arguments)) for name, arguments in calls]
        schemas = {tool["name"]: tool.get("parameters", {}) for tool in self.tools}
        well_formed = bool(read) and all(
            arguments is not None and name in schemas and jsonschema_rs.is_valid(schemas[name], arguments)
            for name, arguments in read
        )
        if not well_formed or len(read) > 1 or read[0][0] != self.name:
            return Verdict(well_formed)
        return Verdict(well_formed, right_tool=True, exact=self._exact(*read[0]))

    def _exact(self, name: str, arguments: Mapping[str, Any] | None) -> bool:
        if self.recorded is not None:
            right, _ = scorer(BFCL.parent).score_record(self.recorded, [{"name": name, "arguments": arguments}])
            return bool(right)
        given = arguments or {}
        return given.keys() <= self.accepted.keys() and all(
            _among(given.get(key), values) for key, values in self.accepted.items()
        )


def load(file: Path = FILE) -> tuple[dict[str, list[Request]], dict[str, list[Chat]]]:
    """Return the sets of requests and the sets of chats, by name. Raises KeyError for an unknown set of tools."""
    data = json.loads(file.read_text(encoding="utf-8"))
    toolsets = data["toolsets"]
    requests = {
        name: [
            Request(f"{name}-{number}", row["text"], toolsets[row["tools"]], row["call"], row["arguments"])
            for number, row in enumerate(rows, 1)
        ]
        for name, rows in data["requests"].items()
    }
    chats = {
        name: [Chat(f"{name}-chat-{number}", row["text"], toolsets[row["tools"]]) for number, row in enumerate(rows, 1)]
        for name, rows in data["chats"].items()
    }
    return requests, chats


def load_bfcl() -> list[Request]:
    """Return those simple and multiple cases of BFCL whose questions are here. Raises UnavailableError where they are absent."""
    if not QUESTIONS.is_file():
        raise UnavailableError(f"../shared/data/bfcl/{QUESTIONS.name} is not here")
    questions = {row["id"]: row["question"] for row in map(json.loads, QUESTIONS.read_text(encoding="utf-8").splitlines())}
    scorer(BFCL.parent)
    found: dict[str, Request] = {}
    for line in lines(BFCL):
        row = json.loads(line)
        if row["id"] in questions and row["category"] in ("simple", "multiple"):
            tools = [tool["function"] for tool in row["tools"]]
            name = row["possible_answers"][0]["name"]
            found.setdefault(row["id"], Request(row["id"], questions[row["id"]], tools, name, recorded=row))
    return list(found.values())


def _object(arguments: str) -> dict[str, Any] | None:
    try:
        value = json.loads(arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _among(value: Any, accepted: Sequence[Any]) -> bool:
    """Return whether a value is one of the accepted ones; 1 is 1.0, but not true."""
    return any(value == other and isinstance(value, bool) is isinstance(other, bool) for other in accepted)
