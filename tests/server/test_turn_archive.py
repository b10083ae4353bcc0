"""Ended turns are kept in the database (``keep_turns``), with their content only if that is wanted (``keep_content``)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from proxy_rig import recording

from patchbay._redaction import Redactor
from patchbay.errors import ConfigurationError
from patchbay.hooks import AbortTurn, HookManager
from patchbay.proxy import create_app
from patchbay.server import ToolsSettings, create_tools_app
from patchbay.server.governance import Governance
from patchbay.server.settings import ProxySettings, parse_duration
from patchbay.server.turn_archive import TurnArchive
from patchbay.server.turn_views import TurnQuery
from patchbay.server.turns import Turn, TurnStore
from patchbay.testing import ScriptedUpstream
from server.test_turn_store import BODY, FENCED, TOOLS, Proxy
from support.http_server import serving

DAY = 86400.0
ANSWER = ("hook", "point", "decision", "reason")
ATTEMPT = ("request", "text", "native_calls", "reading")


@contextlib.contextmanager
def keeping(store: str, script: Any, *, most: int = 200, **settings: Any) -> Iterator[Proxy]:
    """A proxy that keeps ended turns in ``store``, and the last ``most`` in memory."""
    with ScriptedUpstream(script, tools="ignore") as upstream:
        app = create_app(upstream.url, **{"tools": "text", "response_store": store, "keep_turns": DAY, **settings})
        app.turns.most = most
        records = recording(app)
        with serving(app) as port:
            yield Proxy(port, records)


def ask_for(city: str, **members: Any) -> dict[str, Any]:
    return {**BODY, "messages": [{"role": "user", "content": f"How is {city}?"}], **members}


def test_turns_are_shown_after_a_restart_as_they_were_before(url: str) -> None:
    with keeping(url, [FENCED, "Sunny."], keep_content=True) as at:
        at.chat()
        at.chat({"model": "other", "messages": [{"role": "user", "content": "Hi"}]})
        before = at.turns(ended=2)
        details = [at.get(f"/api/turns/{turn['id']}") for turn in before]
        attempts = [at.get(f"/api/turns/{turn['id']}/attempts/0") for turn in before]
    with keeping(url, []) as at:
        assert before == at.get("/api/turns")["turns"]
        for turn, detail, attempt in zip(before, details, attempts, strict=True):
            found = at.get(f"/api/turns/{turn['id']}")
            shown = at.get(f"/api/turns/{turn['id']}/attempts/0")
            assert detail == {**found, "attempts": [_without(each, ATTEMPT, cut=True) for each in found["attempts"]]}
            assert attempt == {name: shown[name] for name in (*ATTEMPT, "cut")}
            assert found == at.get(f"/api/turns/{turn['id']}?download=1")


def test_hooks_of_a_turn_are_kept(url: str) -> None:
    class Guard:
        async def before_llm(self, request: Any) -> Any:
            return AbortTurn("not today")

    hooks = HookManager()
    hooks.mount("guard", Guard())
    with keeping(url, [], governance=Governance(hooks=hooks)) as at:
        at.chat()
        shown = at.only()["hooks"]
    assert [("guard", "before_llm", "ended the turn", "not today")] == [tuple(map(each.get, ANSWER)) for each in shown]
    with keeping(url, []) as at:
        [turn] = at.get("/api/turns")["turns"]
        assert shown == at.get(f"/api/turns/{turn['id']}")["hooks"]


def _without(attempt: dict[str, Any], names: tuple[str, ...], *, cut: bool) -> dict[str, Any]:
    return {name: value for name, value in attempt.items() if name not in names and not (cut and name == "cut")}


def test_content_is_not_written_unless_it_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "turns.db"
    with keeping(f"sqlite:///{file}", [FENCED]) as at:
        at.chat(ask_for("Reykjavik"))
        [before] = at.turns()
    with keeping(f"sqlite:///{file}", []) as at:
        [turn] = at.get("/api/turns")["turns"]
        found = at.get(f"/api/turns/{turn['id']}")
        attempt = at.get(f"/api/turns/{turn['id']}/attempts/0")
    assert {**before, "preview": ""} == turn
    assert (None, True) == (found["client_request"], found["cut"])
    assert [("weather", "")] == [(call["name"], call["arguments"]) for call in found["attempts"][0]["calls"]]
    assert (None, None, None, True) == tuple(attempt[name] for name in ("request", "text", "reading", "cut"))
    rows = _stored(f"sqlite:///{file}")
    assert 1 == len(rows)
    assert not [word for word in ("Reykjavik", "Rome", "tool_call") if word in json.dumps(rows)]


def _stored(url: str) -> list[Any]:
    """Everything that is stored, decoded."""

    async def read() -> list[Any]:
        archive = TurnArchive(url, keep=DAY, keeps_content=False)
        try:
            summaries = await archive.find(TurnQuery(), 100)
            return [summaries, *[await archive.get(each["id"]) for each in summaries]][1:] if summaries else []
        finally:
            await archive.aclose()

    return asyncio.run(read())


def test_list_goes_on_from_memory_into_the_database(url: str) -> None:
    names = [f"City{number}" for number in range(7)]
    with keeping(url, ["Fine."] * 7, most=3, keep_content=True) as at:
        for number, name in enumerate(names, 1):
            at.chat(ask_for(name))
            at.records.wait(number)
        whole = [turn["preview"] for turn in at.turns(ended=7)]
        paged: list[str] = []
        following = ""
        while following is not None:
            page = at.get(f"/api/turns?limit=2&before={following}")
            paged += [turn["preview"] for turn in page["turns"]]
            following = page["next"]
    assert [f"How is {name}?" for name in reversed(names)] == whole
    assert whole == paged


def test_turns_in_the_database_are_found_by_what_they_are(url: str) -> None:
    with keeping(url, [FENCED, "Fine.", {"status": 500}], keep_content=True) as at:
        at.chat(ask_for("Zürich", tools=[*TOOLS]))
        at.chat(ask_for("Oslo", model="other"))
        at.chat(ask_for("Paris"))
        at.turns(ended=3)
    with keeping(url, []) as at:

        def found(query: str) -> list[str]:
            return sorted(turn["preview"] for turn in at.get(f"/api/turns?{query}")["turns"])

        assert ["How is Zürich?"] == found("tool=weather")
        assert [] == found("tool=weathe")
        assert [] == found("tool=%25")
        assert ["How is Oslo?"] == found("model=other")
        assert ["How is Oslo?", "How is Zürich?"] == found("outcome=done")
        assert ["How is Paris?"] == found("outcome=failed")
        assert ["How is Zürich?"] == found("q=z%C3%9CRICH")
        assert ["How is Zürich?"] == found("q=rome")
        assert [] == found("q=Tokyo")


def test_secrets_of_a_client_are_not_stored(tmp_path: Path) -> None:
    key = "sk-0123456789abcdef"
    with keeping(f"sqlite:///{tmp_path / 'turns.db'}", [f"You wrote {key}"], keep_content=True) as at:
        at.chat(ask_for(key), authorization=f"Bearer {key}")
        at.turns()
    shown = json.dumps(_stored(f"sqlite:///{tmp_path / 'turns.db'}"))
    assert "You wrote [redacted]" in shown
    assert key not in shown


def ended(name: str, began: float) -> Turn:
    turn = TurnStore().begin(name, "chat", None, Redactor())
    turn.began = began
    turn.end(1.0, status=200, error="", ending=None)
    return turn


async def keep(url: str, turns: list[Turn], **options: Any) -> list[str]:
    archive = TurnArchive(url, **{"keep": 100.0, "keeps_content": True, **options})
    for turn in turns:
        archive.add(turn)
    await archive.aclose()
    archive = TurnArchive(url, **{"keep": 100.0, "keeps_content": True, **options})
    try:
        return [each["id"] for each in await archive.find(TurnQuery(), 1000)]
    finally:
        await archive.aclose()


async def test_turns_are_deleted_by_age(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchbay.server.turn_archive.time.time", lambda: 1000.0)
    assert ["new"] == await keep(url, [ended("old", 899.0), ended("new", 901.0)])


async def test_oldest_turns_are_deleted_where_all_of_them_are_too_large(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchbay.server.turn_archive._DELETE_LIMIT", 3)
    turns = [ended(f"t{number}", number) for number in range(12)]
    left = await keep(url, turns, keep=1e12, most_bytes=4000)
    assert left == [f"t{number}" for number in range(11, 11 - len(left), -1)]
    assert 1 <= len(left) <= 9


async def test_turns_wait_for_a_database_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchbay.server.turn_archive._RETRY_FIRST", 0.01)
    url = f"sqlite:///{tmp_path / 'turns.db'}"
    archive = TurnArchive(url, keep=DAY, keeps_content=True)
    write, failures = archive._database.write, iter([True, True])

    async def failing(work: Any) -> Any:
        if next(failures, False):
            raise sa.exc.OperationalError("INSERT", {}, Exception("the disk is full"))
        return await write(work)

    monkeypatch.setattr(archive._database, "write", failing)
    archive.add(ended("a", time.time()))
    await archive.aclose()
    assert ["a"] == await keep(url, [])


async def test_turn_that_cannot_be_described_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    describe = TurnArchive._row

    def failing(archive: TurnArchive, turn: Turn) -> dict[str, Any]:
        if turn.id == "bad":
            raise ValueError("no text")
        return describe(archive, turn)

    monkeypatch.setattr(TurnArchive, "_row", failing)
    turns = [ended("bad", time.time()), ended("good", time.time())]
    assert ["good"] == await keep(f"sqlite:///{tmp_path / 'turns.db'}", turns)
    assert "The turn bad is not kept" in caplog.text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("30m", 1800.0), ("12h", 43200.0), (" 7D ", 604800.0), ("0.5h", 1800.0)]
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert seconds == parse_duration(text)


@pytest.mark.parametrize("text", ["", "7", "d", "0d", "-1d", "7 weeks", "1e3s"])
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a duration"):
        parse_duration(text)


def test_settings_that_could_keep_nothing_are_refused() -> None:
    upstream = "http://127.0.0.1:1/v1"
    with pytest.raises(ConfigurationError, match="--store"):
        ProxySettings(upstream, keep_turns=DAY)
    with pytest.raises(ConfigurationError, match="--keep-turns"):
        ProxySettings(upstream, response_store="sqlite:///x.db", keep_content=True)
    with pytest.raises(ConfigurationError, match="--store"):
        create_tools_app(upstream=upstream, store=None, settings=ToolsSettings(keep_turns=DAY))
