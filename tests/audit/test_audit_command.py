"""``patchbay audit`` as people run it: against a database, and against a server."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import typer

from patchbay.audit import AuditEntry, AuditPage, AuditQuery
from patchbay.cli import audit as audit_command
from patchbay.cli.http import ServerRefusedError, ServerUnavailableError
from patchbay.cli.terminal import format_duration, parse_time
from patchbay.errors import ConfigurationError
from support.running import run
from support.tables import rows

from .recording import denied, record, store_records
from .serving import Command, Reading, patchbay, serving

TOKEN = "0123456789abcdef-token"


@pytest.fixture
def store(tmp_path):
    now = time.time()
    decisions = (("guard", "before_tool", "denied: \x1b[31mred"),)
    run(
        store_records(
            tmp_path / "audit.db",
            record("a", time=now - 7200, tool="fs_read", prompt_tokens=1200, completion_tokens=7),
            denied("b", time=now - 60, tool="fs_write", source="plugin:x", decisions=decisions),
            record("c", time=now - 30, tool="add", is_error=True, code="tool_timeout", seconds=1.5),
        )
    )
    return str(tmp_path / "audit.db")


def listed(*arguments: str) -> str:
    status, out, err = patchbay("audit", "--json", *arguments)
    assert (0, "") == (status, err)
    return "".join(json.loads(line)["call_id"] for line in out.splitlines())


def test_table_shows_the_outcome_of_each_call(store):
    status, out, err = patchbay("audit", "--store", store)
    assert (0, "") == (status, err)
    head, *lines = out.splitlines()
    assert ["WHEN", "WHO", "TOOL", "OUTCOME", "TIME", "RESULT", "TOKENS", "DECISIONS"] == head.split()
    assert ["tool_timeout", "tool_denied", "ok"] == [next(word for word in line.split() if word in ("ok", "tool_timeout", "tool_denied")) for line in lines]  # fmt: skip
    assert "helper/s1/ann" in lines[0]
    assert "1.5 s" in lines[0]
    assert ["1200+7", "-"] == lines[2].split()[-2:]
    assert "fs_write (plugin:x)" in lines[1]
    assert "guard: denied: \\u001b[31mred" in lines[1]
    assert "\x1b" not in out


def test_no_cell_is_wider_than_its_column_and_no_line_without_end(tmp_path):
    decisions = tuple((f"guard{number}", "before_tool", "denied: " + "x" * 900) for number in range(60))
    wide, accented = "\u732b", "e\u0301"  # two columns, and one
    odd = {"tool": wide * 40, "session_key": "(" * 500}
    run(store_records(tmp_path / "audit.db", denied("a", decisions=decisions, **odd), record("b", tool=accented * 20)))
    _, out, _ = patchbay("audit", "--store", str(tmp_path / "audit.db"), environment={"PYTHONIOENCODING": "utf-8"})
    _, short, long = out.splitlines()
    assert f"  helper/s1/ann             {accented * 20}      ok  " in short
    assert f"  helper/{'(' * 16}~  {wide * 11}~   tool_denied  " in long
    assert ("56 more", True) == (long[-7:], len(long) < 500)


def test_filters_select_entries(store, capsys):
    def listed_here(*arguments: str) -> str:  # in this process: what is looked at is what is found
        application = typer.Typer()
        application.command()(audit_command.audit)
        application(["--json", "--store", store, *arguments], standalone_mode=False)
        return "".join(json.loads(line)["call_id"] for line in capsys.readouterr().out.splitlines())

    asked = {
        "cba": (),
        "cb": ("--since", "1h"),
        "a": ("--until", "1h"),
        "ba": ("--tool", "fs_*"),
        "ca": ("--tool", "fs_read", "--tool", "add"),
        "b": ("--denied",),
        "cb ": ("--errors",),
        "b ": ("--source", "plugin:x"),
        "cba ": ("--session", "s1", "--agent", "helper", "--turn", "t1"),
        "cb  ": ("-n", "2"),
    }
    assert {key: key.strip() for key in asked} == {key: listed_here(*words) for key, words in asked.items()}


@pytest.mark.parametrize(("arguments", "words"), rows(__file__, "bad_arguments.jsonl"))
def test_invalid_arguments_are_a_one_line_error(arguments, words):
    status, out, err = patchbay("audit", *arguments)
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert words in err


def test_file_that_is_not_a_database_is_a_one_line_error(tmp_path):
    (tmp_path / "audit.db").write_text("no database" * 1000)
    status, out, err = patchbay("audit", "--store", str(tmp_path / "audit.db"))
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert "not a database" in err


def test_audit_without_server_or_store_names_the_flags(monkeypatch, capsys):
    monkeypatch.setattr(audit_command, "SERVER", "http://127.0.0.1:9")
    monkeypatch.delenv("PATCHBAY_SERVER", raising=False)
    monkeypatch.delenv("PATCHBAY_AUDIT", raising=False)
    application = typer.Typer()
    application.command()(audit_command.audit)
    with pytest.raises(ServerUnavailableError) as error:
        application([], standalone_mode=False)
    assert "" == capsys.readouterr().out
    assert ("No response from http://127.0.0.1:9: Connection refused", "Start `patchbay serve`, or use --server or --store") == (
        str(error.value),
        error.value.hint,
    )


def test_token_is_sent_to_the_server(tmp_path):
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    with serving(tmp_path, token=TOKEN) as server:
        server.run()
        status, out, err = patchbay("audit", "--server", server.url)
        assert (1, "") == (status, out)
        assert "send the token of this server to read the audit. Use --token-file.\n" in err
        with_token = ("--server", server.url, "--token-file", str(token))
        assert "c1" in (both := listed(*with_token))
        assert ("c2", 4) == (listed(*with_token, "--denied"), len(both))
        # The environment is what is meant where the command line says nothing, and only there.
        there = {"PATCHBAY_SERVER": server.url, "PATCHBAY_TOKEN_FILE": str(token), "PATCHBAY_AUDIT": str(tmp_path / "other.db")}
        assert 2 == patchbay("audit", environment=there)[0]
        assert 0 == patchbay("audit", "--server", server.url, environment=there)[0]


def test_new_entries_are_followed_until_ctrl_c(store, tmp_path):
    with Command("audit", "--store", store, "--follow", "--json", "--interval", "0.05", "--tool", "fs_*") as command:
        command.printed('"call_id": "b"')
        run(store_records(store, record("d", tool="fs_read"), record("e"), record("f", tool="other")))
        command.printed('"call_id": "e"')
        status = command.end(signal.SIGINT)
    assert (130, []) == (status, command.errors)
    assert ["a", "b", "d", "e"] == [json.loads(line)["call_id"] for line in command.lines]


def test_follow_ends_when_its_reader_closes_without_new_entries(store):
    with Reading("audit", "--store", store, "--follow", "--json", "--interval", "60") as reading:
        assert '"call_id": "a"' in reading.line()
        assert 1 == reading.leave()


def test_follow_retries_transient_errors(capsys):
    found = AuditEntry(1, "w", 1, 2.0, call_id="d")
    answers = [
        ServerUnavailableError("gone"),
        ServerRefusedError("not now", is_transient=True),
        ConfigurationError("cannot be opened"),
        AuditPage((found,), None),
        AuditPage((), None),
        ServerRefusedError("never", is_transient=False),
    ]
    asked, shown = [], []

    def ask(query: AuditQuery) -> AuditPage:
        asked.append(query.after)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ServerRefusedError, match="never"):
        audit_command.follow_calls(ask, AuditQuery(), None, shown.extend, 0.001)
    assert ([0, 0, 0, 0, 1, 1], [found], "gone; retrying\n") == (asked, shown, capsys.readouterr().err)


def test_follow_does_not_recreate_a_removed_file(store):
    ask = audit_command.query_store(store)
    assert 3 == len(ask(AuditQuery()).entries)
    Path(store).unlink()
    with pytest.raises(ConfigurationError, match="--store: no such file"):
        ask(AuditQuery(after=3))
    assert not Path(store).exists()


def test_more_than_a_page_is_listed(tmp_path):
    file = tmp_path / "audit.db"
    run(store_records(file, *(record(str(number)) for number in range(1500))))
    _, out, _ = patchbay("audit", "--store", str(file), "--json", "-n", "1400")
    assert list(map(str, range(1499, 99, -1))) == [json.loads(line)["call_id"] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("text", "ago"), [("30s", 30), ("15m", 900), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600), (" 5min ", 300)]
)
def test_times_that_are_past_are_read(text, ago):
    assert 10_000_000 - ago == parse_time(text, 10_000_000, "--since")


def test_moments_are_read():
    assert 1767225600 == parse_time("2026-01-01T00:00:00Z", 0, "--since")
    assert 1767225600 - 3600 == parse_time("2026-01-01T00:00+01:00", 0, "--since")
    for wrong in ("", "2", "h", "-2h", "2026-13-01", "١h"):
        with pytest.raises(ConfigurationError):
            parse_time(wrong, 0, "--since")


def test_durations_are_printed_with_few_digits():
    received = {
        0.00012: "0.1 ms",
        0.0456: "46 ms",
        0.9994: "999 ms",
        0.9996: "1.0 s",
        61.23: "61.2 s",
        600: "10 min",
        9000: "2.5 h",
    }
    assert received == {seconds: format_duration(seconds) for seconds in received}
