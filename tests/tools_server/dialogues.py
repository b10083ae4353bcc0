"""Dialogues with ``/api/tools``, kept in the files of ``wire``.

A line with ``>`` is a request, the next one with ``<`` the status and a part of the answer: keys that it must hold, ``!key`` for one
that must not be there, ``...`` in a text for anything. ``tools`` asks for the names by role. A first line ``with`` says what the
server is.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tools_server.rig import Server

WIRE = Path(__file__).parent / "wire"
_REQUEST = re.compile(r"> (?P<action>[a-z]+|[A-Z]+ \S+)(?: \[(?P<header>[^]]*)\])?(?: (?P<body>.*))?")


def dialogues(file: str) -> dict[str, list[str]]:
    """Return the lines of each dialogue of a file, by title."""
    _, *found = (WIRE / file).read_text(encoding="utf-8").split("\n== ")
    return {lines[0]: [line for line in lines[1:] if line] for lines in (each.split("\n") for each in found)}


def hold(server: Server, lines: list[str]) -> None:
    """Ask a server what a dialogue asks, and compare the answers."""
    for request, expected in zip(lines[::2], lines[1::2], strict=True):
        status, answer = _ask(server, request)
        _, code, body = [*expected.split(" ", 2), ""][:3]
        assert (int(code), "") == (status, differs(json.loads(body), answer) if body else ""), f"{request}\n{answer}"


def _ask(server: Server, line: str) -> tuple[int, Any]:
    found = _REQUEST.fullmatch(line)
    assert found, line
    action, header, body = found.groups()
    if action == "tools":
        listing = server.ask("GET", "/api/tools").json["tools_by_role"]
        return 200, {role: [tool["name"] for tool in tools] for role, tools in listing.items()}
    method, path = action.split(" ") if " " in action else ("POST", f"/api/tools/{action}")
    given = json.loads(body) if body else None
    if action == "register":
        given = {"name": "a", "callback_url": "http://127.0.0.1:9/call", **given}
    name, _, value = (header or "").partition(": ")
    answer = server.ask(method, path, given, **({name: value} if header else {}))
    return answer.status, answer.json if answer.body else None


def differs(expected: Any, found: Any, place: str = "") -> str:
    """Say where an answer lacks a part of what is expected, "" where it has all."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, each in expected.items():
            if key.startswith("!"):
                if key[1:] in found:
                    return f"{place}/{key[1:]} is there"
            elif key not in found:
                return f"{place}/{key} is missing"
            elif problem := differs(each, found[key], f"{place}/{key}"):
                return problem
        return ""
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return next((problem for n, pair in pairs if (problem := differs(*pair, f"{place}/{n}"))), "")
    if isinstance(expected, str) and "..." in expected and isinstance(found, str):
        pattern = ".*".join(map(re.escape, expected.split("...")))
        return "" if re.fullmatch(pattern, found, re.DOTALL) else f"{place} is {found!r}"
    same = expected == found and isinstance(expected, bool) == isinstance(found, bool)
    return "" if same else f"{place} is {found!r}, not {expected!r}"
