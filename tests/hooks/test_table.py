"""Turns of a model that makes one call, row by row of ``turns.jsonl``: what hooks answer, and what becomes of the turn.

A decision is ``{"DenyTool": "reason"}``, with a list for several arguments; ``{"value": ...}`` is no decision, ``{"class": ...}``
its class. A step of the script is a text, or a text with calls. What is expected of a turn is a member of ``outcome``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchbay import hooks
from patchbay.hooks import HookManager, HookPolicy, ToolOutput
from patchbay.types import Reply
from support.tables import rows

from .turns import HI, called, hook, play_turn


def decision(written: Any) -> Any:
    if written is None:
        return None
    ((name, value),) = written.items()
    if name == "value":
        return value
    if name == "class":
        return lambda _view: getattr(hooks, value)  # called by ``hook``, as functions are
    if isinstance(value, dict) and "ToolOutput" in value:
        value = ToolOutput(value["ToolOutput"])
    is_arguments = isinstance(value, list) and name in ("Approval", "Continue")
    return getattr(hooks, name)(*value) if is_arguments else getattr(hooks, name)(value)


def step(written: Any) -> Any:
    if isinstance(written, str):
        return written
    return Reply(written["text"], tool_calls=tuple(called(name, json.dumps(given)) for name, given in written["calls"]))


def outcome(turned: Any) -> dict[str, Any]:
    final, request = turned.final, turned.requests[0]
    return {
        "results": turned.results, "ran": [list(each) for each in turned.ran], "codes": turned.codes, "content": final.content,
        "finish": final.finish_reason, "said": final.messages[1]["content"], "sent": request.parameters,
        "messages": request.messages, "offered": turned.offered(),
    }  # fmt: skip


@pytest.mark.parametrize("row", rows(__file__, "turns.jsonl"), ids=lambda row: row["about"])
def test_turn_with_hooks(row, caplog):
    manager, records = HookManager(policy=HookPolicy(**row.get("policy", {}))), []
    manager.recorders.append(records.append)
    for number, methods in enumerate(row["hooks"]):
        answers = {point: decision(written) for point, written in methods.items()}
        manager.mount(f"hook{number}", hook(**answers), fail_closed=row.get("fail_closed"))
    script = [step(each) for each in row.get("script", [])]
    turned = play_turn(manager, *script, messages=row.get("messages", HI), parameters=row.get("parameters"))
    found, expected = outcome(turned), dict(row["expect"])
    found["decisions"] = [list(each) for record in records for each in record.decisions]
    assert all(words in caplog.text for words in expected.pop("log", []))
    assert expected == {name: found[name] for name in expected}
