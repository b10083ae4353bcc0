"""The line of each finished request: on a terminal, with -v anywhere, and in ``patchbay tail``."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from patchbay.cli.request_lines import describe_request
from patchbay.models.request_record import RequestRecord
from patchbay.testing import ScriptedUpstream
from support.http_server import BOUND, ask
from support.processes import Process, listening

COMMAND = [sys.executable, "-m", "patchbay"]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CHAT = {"model": "gem\x1b[2Jma", "messages": [{"role": "user", "content": "Please add."}], "tools": TOOLS}
CALL = '```tool_call\n{"name": "add", "arguments": {}}\n```'
KEY = "a-key-of-this-test"
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


class Terminal:
    """A terminal on which a server writes its stderr."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self._text = ""
        self._came = threading.Condition()

    def start(self) -> None:
        """Read until the server has ended."""
        os.close(self.theirs)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # closed at the other end
                os.close(self._ours)
                return
            with self._came:
                self._text += data.decode()
                self._came.notify()

    def lines(self, pattern: str, count: int = 1) -> list[str]:
        """The lines that match, as soon as there are so many."""

        def found() -> list[str]:
            return [line for line in self._text.split("\r\n")[:-1] if re.search(pattern, line)]

        with self._came:
            assert self._came.wait_for(lambda: len(found()) >= count, BOUND), self._text
            return found()


@contextmanager
def on_a_terminal(*command: str, **environment: str) -> Iterator[tuple[int, Terminal]]:
    """Run a server whose stderr is a terminal; yields its port."""
    terminal = Terminal()
    env = {**os.environ, "PROXY_API_KEY": KEY, "TERM": "xterm", **environment}
    process = Process([*COMMAND, *command, "--port", "0"], stdout=subprocess.PIPE, stderr=terminal.theirs, text=True, env=env)
    terminal.start()
    alarm = threading.Timer(BOUND, process.kill)
    alarm.start()
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)", process.stdout.readline())
        assert found
        yield int(found[1]), terminal
        process.terminate()
        process.communicate(timeout=BOUND)
    finally:
        process.kill()
        alarm.cancel()


def chat(port: int, **fields: Any) -> int:
    return ask(port, "POST", "/v1/chat/completions", {**CHAT, **fields}, headers=HEADERS).status


def test_terminal_shows_a_coloured_line_for_each_request_and_errors_stand_out() -> None:
    with (
        ScriptedUpstream([CALL], tools="refuse") as upstream,
        on_a_terminal("proxy", "--upstream", upstream.url) as (port, terminal),
    ):
        assert (200, 400) == (chat(port), chat(port, messages=f"sk-{'0' * 20}"))
        [line] = terminal.lines("200")
        [failed] = terminal.lines("400")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d chat gem\\u001b\[2Jma text whole 1 tool 1 call \d+ → \d+ tokens [0-9.]+ m?s 200 \[[0-9a-f]{8}-1\]", plain
    ), plain
    assert "\x1b[32m200\x1b[0m" in line
    assert "\x1b[31m400 invalid_request: 'messages' must be an array" in failed
    assert "WARNING" not in failed


def test_verbose_lines_have_the_names_of_tools_and_the_reasons_without_colours_where_they_are_not_wanted() -> None:
    with (
        ScriptedUpstream([CALL], tools="refuse") as upstream,
        on_a_terminal("proxy", "--upstream", upstream.url, "-v", NO_COLOR="1") as (port, terminal),
    ):
        chat(port)
        [line] = terminal.lines(r" chat ")
    assert re.search(r"200 \[add\] \(HTTP 400: the server refuses tools, so they are in the prompt\) \[[0-9a-f]{8}-1\]$", line)
    assert "\x1b" not in line


@pytest.mark.parametrize("what", ["proxy", "serve"])
def test_quiet_server_on_a_terminal_shows_no_requests(what: str) -> None:
    with ScriptedUpstream(["Fine."] * 2) as upstream:
        with on_a_terminal(what, "--upstream", upstream.url, "--store", "memory") as (port, terminal):
            chat(port)
            assert terminal.lines(r"chat.*200")
        with on_a_terminal(what, "--upstream", upstream.url, "--store", "memory", "--quiet") as (port, terminal):
            chat(port)
    assert "" == terminal._text


def test_tail_shows_the_requests_of_a_plain_proxy_of_which_the_printed_url_is_given() -> None:
    with (
        ScriptedUpstream([CALL], tools="refuse") as upstream,
        listening([*COMMAND, "proxy", "--port", "0", "--upstream", upstream.url], name="proxy", timeout=BOUND) as proxy,
        Process([*COMMAND, "tail", "--server", proxy.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail,
    ):
        assert tail.stderr is not None
        assert tail.stdout is not None
        assert tail.stderr.readline().startswith("Tailing http://127.0.0.1:")
        chat(int(proxy.url.rpartition(":")[2].removesuffix("/v1")))
        line = tail.stdout.readline()
        tail.kill()
    assert re.search(r"chat gem\\u001b\[2Jma text whole 1 tool 1 call .* 200 \[add\]", line), line


@pytest.mark.parametrize("what", ["proxy", "serve"])
def test_server_prints_its_console_and_the_command_that_watches_it_with_its_token(what: str, tmp_path: Path) -> None:
    (token := tmp_path / "token").write_text(KEY)
    token.chmod(0o600)
    flags = [f"--api-key={KEY}"] if what == "proxy" else [f"--token-file={token}", "--store=memory"]
    command = [*COMMAND, what, "--port", "0", "--upstream", "http://127.0.0.1:9/v1", *flags]
    with listening(command, name=what, timeout=BOUND) as server:
        base = server.url.removesuffix("/v1")
        tail = ["tail", "--server", base, "--token-file", str(token)]
        with Process([*COMMAND, *tail], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert f"Tailing {base}; Ctrl-C ends.\n" == process.stderr.readline()
            process.kill()
    assert f"  console {base}/console\n  monitor patchbay tail --server {base} --token-file FILE\n" in "".join(server.printed)


def test_tail_of_a_proxy_that_has_no_events_says_why_and_is_not_offered() -> None:
    flags = {"--workers=2": "each of its workers has its own: start it with --workers 1", "--api-key=short": "at least 16"}
    for flag, reason in flags.items():
        command = [*COMMAND, "proxy", "--port", "0", "--upstream", "http://127.0.0.1:9/v1", flag]
        with (
            listening(command, name="proxy", timeout=BOUND) as proxy,
            Process([*COMMAND, "tail", "--server", proxy.url], stderr=subprocess.PIPE, text=True) as tail,
        ):
            assert (1, True) == (tail.wait(BOUND), reason in tail.stderr.read())
        printed = "".join(proxy.printed)
        assert (False, "short" in flag) == (
            "  monitor" in printed or "  console" in printed,
            "patchbay tail needs a longer --api-key" in printed,
        )


def test_line_of_a_failed_request_has_its_error_and_no_key() -> None:
    error = f"unauthorized: Incorrect API key provided: sk-{'0' * 20}"
    record = RequestRecord(protocol="chat", model="m", mode="text", tools=3, calls=("a",), seconds=1.2, status=502, error=error)
    line = describe_request(msgspec.structs.asdict(record)).plain
    assert line.startswith("chat m text whole 3 tools 1 call 1.2 s 502 unauthorized")
    assert "0000" not in line


def test_line_says_what_constrained_the_calls() -> None:
    record = RequestRecord(protocol="chat", model="m", mode="text", constraint="grammar", tools=3, seconds=1.2, status=200)
    assert describe_request(msgspec.structs.asdict(record)).plain.startswith(
        "chat m text+grammar whole 3 tools 0 calls 1.2 s 200"
    )


@pytest.mark.parametrize("value", [None, "x\x1b", 7, ["a", 1], {"a": None}])
def test_line_of_a_record_of_another_version_is_shown_as_far_as_it_can_be_read(value: Any) -> None:
    payload = dict.fromkeys(RequestRecord.__struct_fields__, value)
    assert "\x1b" not in describe_request(payload, verbose=True).plain
