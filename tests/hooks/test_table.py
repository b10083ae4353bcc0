"""Turns of a model that makes one call, row by row of ``turns.jsonl``: what hooks answer, and what becomes of the turn.

Decisions are written as ``decision`` reads them. A step of the script is a text, or a text with calls. What is expected of a turn
is a member of ``outcome``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchbay.hooks import HookManager, HookPolicy
from patchbay.types import Reply
from support.tables import rows

from .turns import HI, called, decision, hook, play_turn


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
