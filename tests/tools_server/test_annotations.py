"""What tools of other processes say of themselves: taken over HTTP, kept, shown, and believed as far as it makes policies ask."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from patchbay.approvals import parse_policy
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.server.settings import ToolsSettings
from tools_server.rig import Server, calling_back, json_response, serving

URL = "http://127.0.0.1:9/call"
BOTH = {"read_only": False, "destructive": True}


def test_registering_with_other_annotations_is_a_change(server: Any) -> None:
    revision = server.register(secret="s", annotations={"destructive": True})["revision"]
    assert revision == server.register(secret="s", annotations={"destructiveHint": True})["revision"]
    assert revision < server.register(secret="s", annotations={"destructive": False})["revision"]
    assert {"destructive": False} == server.tools()["a"]["annotations"]


def test_annotations_survive_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tools.db'}"
    with serving(store=store) as server:
        server.register(annotations=BOTH)
        before = server.tools()["a"]
    with serving(store=store) as server:
        assert before == server.tools()["a"]
        assert BOTH == server.app.registry.snapshot("ann").tools["a"].annotations
        assert server.tools() == {"a": before}


@pytest.mark.parametrize("body", [{"metadata": {}}, {"metadata": {"annotations": "no object"}}, {}])
def test_registrations_of_an_older_version_are_restored(tmp_path: Path, body: dict[str, Any]) -> None:
    file = tmp_path / "tools.db"
    with serving(store=f"sqlite:///{file}") as server:
        server.register(annotations=BOTH)
    with sqlite3.connect(file) as database:
        [(stored,)] = database.execute("SELECT body FROM patchbay_registrations").fetchall()
        older = {name: value for name, value in json.loads(stored).items() if name != "metadata"}
        database.execute("UPDATE patchbay_registrations SET body = ?", (json.dumps({**older, **body}),))
    database.close()
    with serving(store=f"sqlite:///{file}") as server:
        assert {} == server.tools()["a"]["annotations"]


def governed_server(tmp_path: Path, policy: dict[str, Any]) -> Any:
    """A server whose calls are put to a policy."""
    parse_policy(policy)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"approvals": policy}), encoding="utf-8")
    return create_tools_app(
        ["ann", "ben"], settings=ToolsSettings(lease=0), governance=Governance(GovernanceSettings(config=file))
    )


def codes(server: Server, **named: dict[str, bool]) -> dict[str, str | None]:
    """Register tools that say this of themselves, call each, and return what became of the calls."""
    with calling_back(json_response({"output": "done", "is_error": False})) as callback:
        for name, text in named.items():
            assert server.register(name, callback.url, annotations=text)["ok"]
        return {name: server.call(name).get("code") for name in named}


def test_policy_applies_restricting_annotations_of_a_registered_tool(tmp_path: Path) -> None:
    policy = {"rules": [{"annotations": ["destructive"], "outcome": "deny"}]}
    with serving(app=governed_server(tmp_path, policy)) as server:
        expected = {"ours": "tool_denied", "mcps": "tool_denied", "not_so": None, "silent": None}
        assert expected == codes(
            server, ours={"destructive": True}, mcps={"destructiveHint": True}, not_so={"destructive": False}, silent={}
        )


def test_annotations_of_a_registered_tool_cannot_relax_the_policy(tmp_path: Path) -> None:
    policy = {
        "default": "deny",
        "rules": [
            {"annotations": ["read_only"], "outcome": "allow"},
            {"annotations": ["!destructive", "safe"], "outcome": "ask", "at_deadline": "allow", "deadline": 0.01},
        ],
    }
    with serving(app=governed_server(tmp_path, policy)) as server:
        claims = {"a": {"read_only": True}, "b": {"readOnlyHint": True}, "c": {"safe": True}, "d": {}}
        assert dict.fromkeys(claims, "tool_denied") == codes(server, **claims)


def test_the_word_of_a_source_that_the_rule_names_is_taken(tmp_path: Path) -> None:
    policy = {"default": "deny", "rules": [{"annotations": ["read_only"], "sources": ["external"], "outcome": "allow"}]}
    with serving(app=governed_server(tmp_path, policy)) as server:
        assert {"a": None, "b": "tool_denied"} == codes(server, a={"read_only": True}, b={"read_only": False})
