"""``patchbay approvals`` against a real server, and watching at a real terminal."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ports import kept_port
from support.cli import run_cli
from support.processes import Process
from support.served import BOUND

from .serving import TOKEN, ran, serving


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """A server that wants its token, and a call that waits there for ever."""
    with serving(tmp_path_factory.mktemp("locked"), token=TOKEN) as running:
        running.run("/secret")
        running.pending()
        yield running


def patchbay(*arguments: str, url: str | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_cli("approvals", *arguments, *(["--server", url] if url else []), stdin=stdin)


def test_pending_requests_are_listed_shown_and_approved(server):
    server.run("/a")
    [pending] = server.pending()
    listed = patchbay("list", url=server.url)
    assert (0, True, True) == (listed.returncode, pending["id"] in listed.stdout, '"path": "/a"' in listed.stdout)
    assert [pending] == json.loads(patchbay("list", "--json", url=server.url).stdout)
    shown = patchbay("show", pending["id"], url=server.url)
    assert (0, True) == (shown.returncode, f"{pending['id']}  delete  pending" in shown.stdout)
    assert re.search(r"^  \d+ min, then it is denied$", shown.stdout, re.MULTILINE)
    done = patchbay("approve", pending["id"], "--by", "ann", url=server.url)
    assert (0, f"{pending['id']}  delete  approved by ann\n") == (done.returncode, done.stdout)
    server.ended()
    assert ["/a"] == server.ran()
    again = patchbay("deny", pending["id"], url=server.url)
    assert (1, "patchbay: The request is approved by ann already.\n") == (again.returncode, again.stderr)
    everything = patchbay("list", "--all", url=server.url)
    assert f"{pending['id']}  delete  approved by ann\n" == everything.stdout
    assert ("", "No pending requests.\n") == ((nothing := patchbay("list", url=server.url)).stdout, nothing.stderr)


def test_facts_of_a_tool_are_listed_shown_and_watched(server):
    with Terminal(server.url) as terminal:
        server.run("/link/my data")
        terminal.seen("May it run?")
        [pending] = server.pending()
        line = '  really: path="/srv/my data"\n'
        assert {"path": "/srv/my data"} == pending["facts"]
        assert [True, True] == [line in patchbay(*what, url=server.url).stdout for what in (["list"], ["show", pending["id"]])]
        assert line in terminal.read.replace("\r\n", "\n")
        terminal.type("y\n")
        server.ended()
        assert ["/link/my data"] == server.ran()
        assert 130 == terminal.interrupt()


def test_a_call_is_approved_with_other_arguments(server):
    server.run("/a")
    [pending] = server.pending()
    refused = patchbay("approve", pending["id"], "--arguments", '{"path": 5}', url=server.url)
    assert (1, True) == (refused.returncode, "do not fit 'delete': /path must be string" in refused.stderr)
    for odd, why in (("{path", "invalid JSON"), ("", "invalid JSON"), ("null", "not a JSON object")):
        done = patchbay("approve", pending["id"], "--arguments", odd, url=server.url)
        assert (2, True) == (done.returncode, why in done.stderr)
    assert [pending] == server.pending()
    done = patchbay("approve", pending["id"], "--arguments", '{"path": "/b"}', "--by", "ann", url=server.url)
    assert (0, f'{pending["id"]}  delete  approved with {{"path": "/b"}} by ann\n') == (done.returncode, done.stdout)
    server.ended()
    assert ["/b"] == server.ran()


def test_a_call_is_denied_with_a_reason(server):
    outcomes = []
    server.run("/a", outcomes)
    [pending] = server.pending()
    done = patchbay("deny", pending["id"], "--reason", "not that one", "--json", url=server.url)
    assert ("denied", "not that one") == tuple(json.loads(done.stdout)[name] for name in ("state", "reason"))
    server.ended()
    assert (["Tool execution denied by a person: not that one"], []) == (outcomes, server.ran())


@pytest.mark.parametrize("request_id", ["000000000000", "../tools", "%00", "x y", ""])
def test_unknown_request_id_is_an_error(server, request_id):
    done = patchbay("show", request_id, url=server.url)
    assert 1 == done.returncode
    assert 1 == len(done.stderr.splitlines())


def test_the_token_is_read_from_its_file(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with serving(tmp_path, token=TOKEN) as server:
        assert "Unauthorized" in patchbay("list", url=server.url).stderr
        assert 0 == patchbay("list", "--token-file", str(file), url=server.url).returncode
        file.chmod(0o644)
        done = patchbay("list", "--token-file", str(file), url=server.url)
        assert (2, True) == (done.returncode, "chmod 600" in done.stderr)


def test_unreachable_server_is_an_error():
    for command in (("list",), ("watch",), ("approve", "000000000000")):
        done = patchbay(*command, url="http://127.0.0.1:9")
        assert (1, True) == (done.returncode, done.stderr.startswith("patchbay: No response from http://127.0.0.1:9: "))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://[", "http://127.0.0.1:99999", "http://127.0.0.1:x", "127.0.0.1:1"])
def test_invalid_server_url_is_an_error(url):
    done = patchbay("list", url=url)
    assert (2, f"patchbay: Invalid server URL {url!r}: use a base URL such as http://127.0.0.1:48911.\n") == (
        done.returncode,
        done.stderr,
    )


class Terminal:
    """``patchbay approvals watch`` at a terminal of its own."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-m", "patchbay", "approvals", "watch", "--interval", "0.1", "--server", url, *arguments]
        environment = {**os.environ, "TERM": "dumb"}
        self.process = Process(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment)
        os.close(slave)
        self.read = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # what is read may end within a character

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def seen(self, text: str, *, since: int = 0) -> int:
        """Wait until the text is on the screen, and return where it ends."""
        until = time.monotonic() + BOUND
        while (at := self.read.find(text, since)) < 0:
            assert time.monotonic() < until, self.read
            if select.select([self.master], [], [], 0.1)[0]:
                self.read += self._decoder.decode(os.read(self.master, 65536))
        return at + len(text)

    def interrupt(self) -> int:
        """Ctrl-C; return the exit status."""
        os.kill(self.process.pid, signal.SIGINT)
        return self.process.wait(BOUND)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(BOUND)
        os.close(self.master)


def test_watch_prompts_for_each_call_until_ctrl_c(server):
    with Terminal(server.url, "--by", "ann") as terminal:
        terminal.seen("Watching")
        at = 0
        for path, typed in (("/a", "y"), ("/b", "n no"), ("/c", "s"), ("/d", None)):
            server.run(path)
            if typed is not None:
                at = terminal.seen(f'"path": "{path}"', since=at)
                at = terminal.seen("May it run?", since=at)
                terminal.type(f"{typed}\n")
            server.ended()
        assert 130 == terminal.interrupt()
    assert ["/a", "/c", "/d"] == server.ran()
    _, everything = server.ask("GET", "/api/approvals?all=1")
    assert {"ann"} == {each["by"] for each in everything["approvals"]}
    assert "Traceback" not in terminal.read


def test_prompt_disappears_when_decided_elsewhere(server):
    with Terminal(server.url) as terminal:
        server.run("/a")
        terminal.seen("May it run?")
        [pending] = server.pending()
        server.decide(pending["id"], "approve", by="ben")
        terminal.seen(f"{pending['id']}  delete  approved by ben")
        assert 130 == terminal.interrupt()


def test_returned_server_is_asked_for_its_pending_requests(tmp_path):
    """The question stands meanwhile; an answer that does not reach the server is asked for again."""
    with serving(tmp_path, port=kept_port()) as server:
        terminal = Terminal(server.url)
        server.run("/a")
        at = terminal.seen("May it run?")
        server.kill()
        terminal.type("y\n")
        at = terminal.seen("; reconnecting", since=terminal.seen("No response from", since=at))
    with terminal, serving(tmp_path, port=server.port) as server:
        at = terminal.seen("May it run?", since=terminal.seen("Reconnected.", since=at))
        terminal.type("y\n")
        terminal.seen("approved by", since=at)
        server.run("/a")
        server.ended()
        assert ["/a"] == ran(tmp_path)
        assert 130 == terminal.interrupt()
    assert "Traceback" not in terminal.read


def test_request_lost_by_the_server_gives_way_to_the_next(tmp_path):
    """It kept nothing, and was started anew."""
    with serving(tmp_path, database="sqlite://", port=kept_port()) as server:
        terminal = Terminal(server.url)
        server.run("/first")
        at = terminal.seen("May it run?")
        server.kill()
    with terminal, serving(tmp_path, database="sqlite://", port=server.port) as server:
        server.run("/second")
        at = terminal.seen("is no longer known to the server", since=at)
        at = terminal.seen('"path": "/second"', since=at)
        terminal.seen("May it run?", since=at)
        terminal.type("y\n")
        server.ended()
    assert ["/second"] == ran(tmp_path)


def test_the_end_of_the_input_ends_watching(server):
    with Terminal(server.url) as terminal:
        server.run("/a")
        terminal.seen("May it run?")
        terminal.type("\x04")
        assert 0 == terminal.process.wait(BOUND)
    assert 1 == len(server.pending())


def test_lists_report_how_much_of_long_arguments_is_omitted(server):
    server.run("x" * 9000)
    [pending] = server.pending()
    text = json.dumps({"path": "x" * 9000})
    listed = patchbay("list", url=server.url).stdout
    assert f"[{len(json.dumps(json.loads(text), indent=2)) - 1200} more characters: v here" in listed
    assert "May it run?" not in listed
    [outcome] = json.loads(patchbay("list", "--json", url=server.url).stdout)
    assert pending == outcome
    assert (None, f"{text[:4000]}... [{len(text) - 4000} more characters]") == (outcome["arguments"], outcome["arguments_text"])
    assert "x" * 9000 in patchbay("show", pending["id"], url=server.url).stdout


def test_calls_in_any_language_are_shown_on_any_terminal(server):
    server.run("猫\ud800")
    server.pending()
    command = [sys.executable, "-m", "patchbay", "approvals", "list", "--server", server.url]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    listed = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=environment)
    assert (0, True) == (listed.returncode, '"path": "\\u732b\\ud800"' in listed.stdout)


@contextlib.contextmanager
def other_program(status, body=b"", **headers):
    """A server that is not ours; yields its URL, and the requests that it gets."""
    received = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            received.append((self.path, self.headers["authorization"]))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere:
        thread = threading.Thread(target=elsewhere.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{elsewhere.server_port}", received
        elsewhere.shutdown()
        thread.join(BOUND)


def test_token_is_sent_only_to_the_named_server(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with other_program(302, location="/elsewhere") as (url, received):
        done = patchbay("list", "--token-file", str(file), url=url)
    assert (1, "patchbay: The server refused the request (HTTP 302).\n") == (done.returncode, done.stderr)
    assert [("/api/approvals", f"Bearer {TOKEN}")] == received


@pytest.mark.parametrize("command", ["list", "sessions"])
def test_a_server_of_another_program_is_refused(command):
    with other_program(200, b'{"status": "ok"}') as (url, _):
        done = patchbay(command, url=url)
    assert (1, "", f"patchbay: {url} is not a Patchbay server.\n") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("command", ["list", "watch", "show", "approve", "deny"])
@pytest.mark.parametrize("token", [None, "another-token-0123456789"])
def test_commands_without_the_token_print_and_decide_nothing(locked, tmp_path, command, token):
    file = tmp_path / "wrong"
    file.write_text(token or "")
    file.chmod(0o600)
    [pending] = locked.pending()
    rest = [pending["id"]] if command not in ("list", "watch") else []
    done = patchbay(command, *rest, *(["--token-file", str(file)] if token else []), url=locked.url)
    assert (1, True, False) == (done.returncode, "Use --token-file." in done.stderr, "/secret" in done.stdout + done.stderr)
    assert TOKEN not in done.stderr
    assert [pending] == locked.pending()


def test_json_watch_prints_changes_without_prompts(server):
    command = [sys.executable, "-m", "patchbay", "approvals", "watch", "--json", "--interval", "0.1", "--server", server.url]
    with Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        try:
            server.run("/a")
            first = json.loads(watching.stdout.readline())
            server.decide(first["id"], "deny", by="ann")
            second = json.loads(watching.stdout.readline())
            watching.send_signal(signal.SIGINT)
            assert 130 == watching.wait(BOUND)
        finally:
            watching.kill()
    assert ((first["id"], "pending"), (first["id"], "denied")) == tuple((each["id"], each["state"]) for each in (first, second))
