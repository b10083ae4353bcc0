"""What clients of ``/api/tools`` say and what the server answers: the dialogues of ``wire/registry.txt``."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from patchbay.tools import ToolDefinition
from patchbay.tools.registry import Registration
from tools_server.dialogues import WIRE, dialogues, hold
from tools_server.rig import Server, serving

ROW = re.compile(r"(\S+) (.*)  ->  (\w+) ?(\S*)")


class Gone:
    """A session whose connection is gone."""

    async def use_tools(self, snapshot: Any) -> None:
        raise ConnectionError("gone")


SECTIONS = dialogues("registry.txt")


@pytest.mark.parametrize("title", SECTIONS)
def test_the_server_answers_as_the_dialogue_says(title: str) -> None:
    lines = SECTIONS[title]
    options = json.loads(lines.pop(0).removeprefix("with ")) if lines[0].startswith("with ") else {}
    with serving(tuple(options.get("roles", ("ann", "ben"))), **options.get("settings", {})) as server:
        for role in options.get("gone", ()):
            server.app.managers[role].active = Gone()
        if name := options.get("builtin"):
            builtin = ToolDefinition(name, handler=dict, metadata={"source": "builtin"})
            server.app.registry.register(Registration.of(builtin), inside=True)
        hold(server, lines)


@pytest.fixture(scope="module")
def strict() -> Any:
    with serving() as server:
        yield server


ROWS = [row.groups() for line in (WIRE / "invalid.txt").read_text().splitlines() if (row := ROW.fullmatch(line))]


@pytest.mark.parametrize(("action", "body", "kind", "place"), ROWS)
def test_an_invalid_body_is_422_with_the_type_and_the_place_of_the_fault(
    strict: Server, action: str, body: str, kind: str, place: str
) -> None:
    answer = strict.ask("POST", f"/api/{action}" if "/" in action else f"/api/tools/{action}", raw=body.encode())
    [fault] = answer.json["detail"]
    assert (422, kind) == (answer.status, fault["type"])
    assert place == "*" or ["body", *filter(None, [place])] == fault["loc"]
    assert {} == strict.tools()


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff\xfe\xfa", b"[" * 100_000, b'{"name":' + b'{"a":' * 5000],
    ids=["empty", "not UTF-8", "deep list", "deep object"],
)
def test_a_body_that_is_not_json_is_422(strict: Server, raw: bytes) -> None:
    answer = strict.ask("POST", "/api/tools/register", raw=raw)
    assert (422, True) == (answer.status, answer.json["detail"][0]["type"] in ("json_invalid", "missing"))
