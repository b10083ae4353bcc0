"""The audit records every call: batches, floods, databases that fail, and entries that cannot be changed."""

from __future__ import annotations

import asyncio
import math
import os
import threading

import pytest
import sqlalchemy as sa

from patchbay import ToolRunner
from patchbay.audit import AuditDecision, AuditEntry, AuditLog, AuditQuery
from patchbay.audit import log as audit_log
from patchbay.audit.log import MAX_DECISIONS, MAX_TEXT, read_page
from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.executor import Executor
from patchbay.hooks import DenyTool, HookManager, HookScope, Meta
from patchbay.models import ModelReply
from patchbay.testing import ScriptedModel
from patchbay.types import Reply, ToolCall, Usage
from support.running import run

from .recording import CONTEXT, denied, find, ids, members, record, store_records


def test_every_field_of_a_record_is_stored(url):
    meta = Meta("helper", "t2", "t1", "s1", 3, "turn.tool.after")
    decisions = (("guard", "before_tool", "changed arguments"), ("ann", "approve_tool", "denied: not that one"))
    run(store_records(url, denied("c9", time=12.5, tool="fs_write", source="plugin:x", decisions=decisions, responded_by="mock")))
    run(
        store_records(
            url, record("c10", time=13.5, meta=meta, seconds=0.25, result_chars=7, prompt_tokens=9, completion_tokens=2)
        )
    )
    page = run(find(url))
    assert None is page.cursor
    expected = {
        "time": 12.5, "agent": "helper", "session_key": "s1", "turn": "t1", "parent_turn": "", "round": 2, "channel": "telegram",
        "sender": "ann", "call_id": "c9", "tool": "fs_write", "source": "plugin:x", "digest": "sha256:0",
        "decisions": [
            {"by": "guard", "point": "before_tool", "decision": "changed arguments"},
            {"by": "ann", "point": "approve_tool", "decision": "denied: not that one"},
        ],
        "responded_by": "mock", "is_error": True, "code": "tool_denied", "result_chars": 3, "seconds": 0.0, "prompt_tokens": 0,
        "completion_tokens": 0, "lost": 0,
    }  # fmt: skip
    newest, oldest = page.entries
    assert expected == members(oldest)
    assert ("t2", "t1", 3, "c10", 0.25, 7) == (newest.turn, newest.parent_turn, newest.round, newest.call_id, newest.seconds, newest.result_chars)  # fmt: skip
    assert (9, 2) == (newest.prompt_tokens, newest.completion_tokens)
    assert newest == AuditEntry.from_json({**newest.as_json(), "unknown": 1})
    assert (AuditDecision("ann", "approve_tool", "denied: not that one"),) == AuditEntry.from_json(oldest.as_json()).decisions[1:]


def test_audit_of_an_older_version_gains_the_columns_that_it_lacks(url):
    run(store_records(url, record("old")))
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg") if url.startswith("postgresql") else url)
    with engine.begin() as connection:
        for name in ("prompt_tokens", "completion_tokens"):
            connection.exec_driver_sql(f"ALTER TABLE patchbay_audit DROP COLUMN {name}")
    engine.dispose()
    run(store_records(url, record("new", prompt_tokens=9)))
    assert [("new", 9), ("old", 0)] == [(each.call_id, each.prompt_tokens) for each in run(find(url)).entries]


async def test_audit_entries_of_a_turn_have_the_tokens_of_the_answer_with_the_call():
    def add() -> int:
        return 1

    hooks, records = HookManager(), []
    hooks.recorders.append(records.append)
    answers = [
        ModelReply(Reply(None, tool_calls=(ToolCall(str(number), "add", "{}"),)), None, Usage(tokens, 2, tokens + 2))
        for number, tokens in enumerate((10, 20))
    ]
    await ToolRunner(ScriptedModel([*answers, "Done."]), [add], hooks=hooks).run("hi")
    await hooks.aclose()
    assert [("0", 10, 2), ("1", 20, 2)] == [(each.call_id, each.prompt_tokens, each.completion_tokens) for each in records]


async def test_audit_entries_of_an_executor_have_sender_and_decisions(url):
    class Guard:
        async def before_tool(self, call):
            return DenyTool("not this") if call.tool == "rm" else None

    hooks = HookManager()
    hooks.mount("guard", Guard())
    async with AuditLog(url) as log:
        hooks.recorders.append(log)

        def rm(path: str) -> str:
            return path

        def add(a: int, b: int) -> int:
            return a + b

        scope = HookScope("helper", "t1", "t0", "s1", context=CONTEXT)
        calls = [ToolCall("1", "rm", '{"path": "x"}'), ToolCall("2", "add", '{"a": 1, "b": 2}'), ToolCall("3", "nobody")]
        batch = Executor([rm, add], hooks=hooks).begin_run(scope=scope).start_batch(calls)
        assert 3 == len([each async for each in batch])
        await batch.stop()
        await log.flush()
    await hooks.aclose()
    outcome = {each.call_id: each for each in (await find(url)).entries}
    assert {"1": "tool_denied", "2": "", "3": "unknown_tool"} == {name: each.code for name, each in outcome.items()}
    assert {("helper", "t1", "t0", "s1", "telegram", "ann")} == {
        (each.agent, each.turn, each.parent_turn, each.session_key, each.channel, each.sender) for each in outcome.values()
    }
    assert (AuditDecision("guard", "before_tool", "denied: not this"),) == outcome["1"].decisions
    assert (1, True) == (outcome["2"].result_chars, outcome["2"].digest.startswith("sha256:"))


async def test_entries_are_found_by_each_filter(url):
    await store_records(
        url,
        record("a", time=100, tool="fs_read", turn_id="t1"),
        record("b", time=200, tool="fs_write", source="plugin:x", session_key="s2", turn_id="t2", parent_turn_id="t1"),
        denied("c", time=300, tool="FS_read", agent_id="other"),
        record("d", time=400, tool="fsXread", is_error=True, code="tool_timeout"),
        denied("e", time=500, tool="f[s]%_\\", session_key="\x00"),
    )
    expected = {
        "edcba": {},
        "ba": {"until": 300},
        "edc": {"since": 300},
        "cb": {"since": 200, "until": 400},
        "a": {"tools": ("fs_read",)},
        "ba ": {"tools": ("fs_*",)},
        "da": {"tools": ("fs?read",)},
        "dba": {"tools": ("fs_*", "*X*")},
        "e": {"tools": ("*[s]%*\\",)},
        "b": {"source": "plugin:x"},
        "c": {"agent": "other"},
        "b ": {"session": "s2"},
        "ba  ": {"turn": "t1", "until": 250},
        "edc ": {"errors": True},
        "ec": {"denied": True},
        "e ": {"session": "\x00"},
        "": {"denied": True, "tools": ("fs_*",)},
    }

    async with AuditLog(url) as log:
        assert {key: key.strip() for key in expected} == {
            key: "".join(ids(await log.query(AuditQuery(**query)))) for key, query in expected.items()
        }


async def test_pages_are_consecutive_and_the_last_is_marked(url):
    await store_records(url, *(record(str(number)) for number in range(10)))

    async with AuditLog(url) as log:
        pages, cursor = [], None
        while not pages or cursor is not None:
            page = await log.query(AuditQuery(limit=4, before=cursor))
            pages.append(ids(page))
            cursor = page.cursor
        middle = (await log.query(AuditQuery(limit=5))).entries[-1].id
        newer = ids(await log.query(AuditQuery(after=middle, limit=3)))
    assert [["9", "8", "7", "6"], ["5", "4", "3", "2"], ["1", "0"]] == pages
    assert ["6", "7", "8"] == newer


@pytest.mark.parametrize(
    "query",
    [{"limit": 0}, {"limit": 1001}, {"limit": True}, {"since": math.nan}, {"until": math.inf}, {"before": -1}, {"after": 2**63}],
)  # fmt: skip
def test_invalid_filter_is_refused(query):
    with pytest.raises(InvalidRequestError):
        AuditQuery(**query)


def test_any_text_is_stored_as_far_as_the_database_can_and_bounded(url):
    odd = "\ud800 \x00 '\"\\ 猫"
    decisions = [(odd, "p", "x" * 100_000)] * 1000
    run(
        store_records(
            url,
            record(
                odd, tool=odd, session_key=odd, context={"inbound": {"sender_id": 7, "channel": None}}, decisions=tuple(decisions)
            ),
        )
    )
    (entry,) = run(find(url, session=odd, tools=(odd,))).entries
    assert ("\ufffd \ufffd '\"\\ 猫", "7", "") == (entry.tool, entry.sender, entry.channel)
    assert (MAX_DECISIONS, MAX_TEXT) == (len(entry.decisions), len(entry.decisions[0].decision))


def test_unwritable_record_is_counted_as_lost_and_does_not_block_others(tmp_path, caplog):
    class Odd:
        def __str__(self):
            raise ValueError("no words")

    odd = record("odd", context={"inbound": {"sender_id": Odd()}})
    run(store_records(tmp_path / "audit.db", record("a"), odd, record("b")))
    entries = run(find(tmp_path / "audit.db")).entries[::-1]
    assert [("a", 0), ("", 1), ("b", 0)] == [(each.call_id, each.lost) for each in entries]
    assert 1 == caplog.text.count("it is counted as lost")


@pytest.mark.parametrize("query", [{"session": "s1"}, {"turn": "t1"}, {"session": "s1", "tools": ("fs_*",), "since": 1.0}])
def test_a_session_and_a_turn_are_found_without_looking_at_every_row(tmp_path, query):
    run(store_records(tmp_path / "audit.db", record("a")))
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'audit.db'}")
    plans = []

    def explain(connection, _cursor, statement, parameters, *_):
        if statement.startswith("SELECT"):
            plans.extend(row[3] for row in connection.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters))

    sa.event.listen(engine, "before_cursor_execute", explain)
    with engine.connect() as connection:
        assert ["a"] == ids(read_page(connection, AuditQuery(**query)))
    engine.dispose()
    assert ([], True) == ([each for each in plans if each == "SCAN patchbay_audit"], any("USING INDEX" in each for each in plans))


def test_flushed_records_are_visible_to_others_without_gaps(url):
    async def work():
        async with AuditLog(url) as log, AuditLog(url) as reader:
            for number in range(1200):  # more than two batches
                log(record(str(number)))
            await log.flush()
            first = await reader.query(AuditQuery(limit=1000))
            second = await reader.query(AuditQuery(limit=1000, before=first.cursor))
            return [*first.entries, *second.entries]

    entries = run(work())[::-1]
    assert list(range(1, 1201)) == [each.number for each in entries]
    assert list(map(str, range(1200))) == [each.call_id for each in entries]
    assert 1 == len({each.writer for each in entries})


async def test_records_are_accepted_from_any_thread_and_closed_loops(url):
    log = AuditLog(url)

    def make(name: str) -> None:
        async def one() -> None:
            log(record(name))

        for _ in range(50):
            asyncio.run(one())

    threads = [threading.Thread(target=make, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    async with log:
        await log.flush()
        page = await log.query(AuditQuery(limit=1000))
    assert dict.fromkeys("abcd", 50) == {name: ids(page).count(name) for name in "abcd"}
    assert list(range(200, 0, -1)) == [each.number for each in page.entries]


@pytest.fixture
def blocked_writes(monkeypatch):
    """Nothing is written until this event is set."""
    may_write = threading.Event()
    write = audit_log.Database.write_from_thread

    def waits(self, work, **options):
        assert may_write.wait(60)
        return write(self, work, **options)

    monkeypatch.setattr(audit_log.Database, "write_from_thread", waits)
    yield may_write
    may_write.set()


def test_a_flood_is_counted_where_it_was_lost_and_never_waits(tmp_path, blocked_writes, caplog):
    async def work():
        async with AuditLog(tmp_path / "audit.db", most_waiting=10) as log:
            for number in range(25):
                log(record(str(number)))
            assert 15 == log.lost
            blocked_writes.set()
            await log.flush()
            log(record("after"))
            await log.flush()
            return await log.query()

    entries = run(work()).entries[::-1]
    assert [*map(str, range(10)), "", "after"] == [each.call_id for each in entries]
    assert (15, "", False) == (entries[10].lost, entries[10].tool, entries[10].is_error)
    assert 1 == len([each for each in caplog.records if "records are lost" in each.getMessage()])


async def test_lost_records_match_any_filter_of_their_time(tmp_path, blocked_writes):
    async with AuditLog(tmp_path / "audit.db", most_waiting=1) as log:
        log(record("a"))
        log(record("b"))
        blocked_writes.set()
        await log.flush()
        asked, elsewhere = await log.query(AuditQuery(tools=("nothing",), denied=True)), await log.query(AuditQuery(until=1.0))
    assert ([1], []) == ([each.lost for each in asked.entries], ids(elsewhere))


def test_failed_audit_writes_are_logged_and_retried(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(audit_log, "RETRY_LONGEST", 0.01)
    folder = tmp_path / "later"

    async def work():
        async with AuditLog(folder / "audit.db") as log:
            log(record("a"))
            with pytest.raises(ConfigurationError, match="cannot be opened"):
                await log.flush()
            log(record("b"))
            folder.mkdir()
            async with asyncio.timeout(30):
                while True:
                    try:
                        await log.flush()
                    except ConfigurationError:
                        continue
                    return await log.query()

    assert ["b", "a"] == ids(run(work()))
    assert 1 == caplog.text.count("Could not write the audit")
    assert 1 == caplog.text.count("Writing the audit works again")


def test_commit_with_a_lost_response_is_stored_once(url, monkeypatch):
    monkeypatch.setattr(audit_log, "RETRY_LONGEST", 0.01)
    real = audit_log.Database.write_from_thread
    broken = []

    def loses_the_answer(self, work, **options):
        done = real(self, work, **options)
        if not broken:
            broken.append(True)
            raise OSError("the connection is gone")
        return done

    monkeypatch.setattr(audit_log.Database, "write_from_thread", loses_the_answer)

    async def work():
        async with AuditLog(url) as log:
            log(record("a"))
            with pytest.raises(OSError, match="gone"):
                await log.flush()
            await log.flush()
            return await log.query()

    assert ["a"] == ids(run(work()))


async def test_database_error_does_not_quote_the_record(tmp_path, caplog):
    file = tmp_path / "audit.db"
    await store_records(file, record("a"))
    engine = sa.create_engine(f"sqlite:///{file}", poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON patchbay_audit BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    async with AuditLog(file) as log:
        log(record("b", tool="secret"))
        with pytest.raises(RuntimeError, match="refused"):
            await log.flush()
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER refuse")
    assert ("refused" in caplog.text, "secret" in caplog.text) == (True, False)


async def test_close_waits_for_a_database_that_recovers(tmp_path):
    folder = tmp_path / "later"

    log = AuditLog(folder / "audit.db")
    log(record("a"))
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        await log.flush()
    closing = asyncio.create_task(log.aclose())
    await asyncio.wait([closing], timeout=0.1)
    folder.mkdir()
    await closing
    assert ["a"] == ids(await find(folder / "audit.db"))


def test_close_writes_pending_records_and_reports_the_lost_ones(tmp_path, caplog, monkeypatch):
    run(store_records(tmp_path / "audit.db", record("a")))

    async def closes_only(file):
        log = AuditLog(file)
        log(record("b"))
        await log.aclose()

    run(closes_only(tmp_path / "audit.db"))
    assert ["b", "a"] == ids(run(find(tmp_path / "audit.db")))
    monkeypatch.setattr(audit_log, "CLOSE_TIMEOUT", 0.1)
    run(closes_only(tmp_path / "nowhere" / "audit.db"))
    assert "1 records of the audit could not be written: ConfigurationError" in caplog.text


def test_the_database_refuses_to_change_an_entry(url):
    run(store_records(url, record("a")))
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg") if url.startswith("post") else url)
    with engine.connect() as connection, pytest.raises(sa.exc.DatabaseError, match="append-only"):
        connection.exec_driver_sql("UPDATE patchbay_audit SET tool = 'other'")
    engine.dispose()
    assert ["fs_read"] == [each.tool for each in run(find(url)).entries]


async def test_expired_records_are_deleted_in_small_steps(url, monkeypatch):
    """Each step is one batch: two entries are deleted with it at most, and none before it is time to look again."""
    monkeypatch.setattr(audit_log, "DELETE_LIMIT", 2)
    # The first batch finds its own entry too old, and that nothing else is; then it does not look until it is time.
    left = []
    for numbers in (range(6), range(6, 8)):  # after a restart it is time
        async with AuditLog(url, keep=3600) as log:
            for number in numbers:
                log(record(f"old{number}", time=1000.0 + number) if number < 5 else record(f"new{number}"))
                await log.flush()
                left.append("".join(each.removeprefix("old").replace("new", "n") for each in ids(await log.query())[::-1]))
    assert ["", "1", "12", "123", "1234", "1234n5", "34n5n6", "n5n6n7"] == left


@pytest.mark.parametrize("options", [{"keep": 0}, {"keep": -1}, {"keep": math.nan}, {"most_waiting": 0}])
def test_options_that_cannot_work_are_refused(tmp_path, options):
    with pytest.raises(ConfigurationError):
        AuditLog(tmp_path / "audit.db", **options)


def test_a_forked_child_writes_its_own_records_and_not_its_parents(tmp_path, blocked_writes):
    """The parent's record waits while it forks: it is written once, and by the parent."""
    file = tmp_path / "audit.db"
    log = AuditLog(file)
    log(record("parent"))
    blocked_writes.set()
    child = os.fork()
    if child == 0:
        try:
            log(record("child"))
            asyncio.run(log.aclose())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    run(log.aclose())
    entries = run(find(file)).entries
    assert ["child", "parent"] == sorted(each.call_id for each in entries)
    assert 2 == len({each.writer for each in entries})


def test_record_with_an_unusual_context_is_stored(url):
    run(store_records(url, record("a", context={"inbound": "?"}), record("b", context={})))
    assert ["b", "a"] == ids(run(find(url)))
