"""``patchbay chat``: the real command, before a real server and a fake model."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.server import serve

from patchbay.cli import main
from patchbay.cli.chat_session import TextView
from patchbay.testing import Raw, Recorded, ScriptedUpstream, events
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Pause, Quote, Say
from realtime.server.rig import Serving, serving
from support.processes import Process, listening, run_process
from tools_server.rig import calling_back, json_response

BOUND = 60


def command(server: Serving, *flags: str) -> list[str]:
    return [sys.executable, "-m", "patchbay", "chat", "--role", "ann", "--server", server.url, *flags]


def chatted(server: Serving, *flags: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    return run_process(command(server, *flags), input=lines, capture_output=True, text=True, timeout=BOUND)


def test_piped_lines_are_answered_in_order_and_tools_are_printed(shared: Serving):
    shared.plays(Call("get_weather", {"city": "Rome"}), Quote(), "You are welcome.\nBye.")
    with calling_back(json_response({"output": "21 degrees"})) as callback:
        shared.http.register("get_weather", callback.url)
        done = chatted(shared, "--realtime", lines="How is Rome?\n\nThanks.")
    assert (0, True) == (done.returncode, done.stdout.endswith("You are welcome.\nBye.\n")), done
    assert "21 degrees" in done.stdout.splitlines()[0]
    assert ['get_weather {"city":"Rome"}', "-> 21 degrees"] == [line.strip() for line in done.stderr.splitlines()]


def test_without_realtime_it_is_a_chat_with_a_model_of_the_upstream():
    with ScriptedUpstream(["Hello.", "Fine."]) as upstream, serving(upstream=upstream.url) as server:
        done = chatted(server, "--model", "small", "--instructions", "Be brief.", lines="Hi.\nHow are you?\n")
        assert (0, "Hello.\nFine.\n", "") == (done.returncode, done.stdout, done.stderr)
        assert ["small", "Be brief."] == [upstream.chats[0].json["model"], upstream.chats[0].json["messages"][0]["content"]]


def test_each_event_is_a_line_of_json(shared: Serving):
    shared.plays("Hello.")
    done = chatted(shared, "--realtime", "--json", "--session", "monday", lines="Hi.")
    frames = [json.loads(line) for line in done.stdout.splitlines()]
    assert ("ready", "monday", "idle") == (frames[0]["type"], frames[0]["session"], frames[-1]["type"])
    assert "Hello." == "".join(frame["delta"] for frame in frames if frame["type"] == "text")
    assert (0, "") == (done.returncode, done.stderr)


def test_ctrl_c_in_a_pipe_ends_the_response_and_the_session():
    script = [Answer((Say("One two three."), Pause(30))), "Never said."]
    with FakeOpenAI(script) as fake, serving(fake) as server, Process(
        command(server, "--realtime", "--json"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as chat, stopped(chat):  # fmt: skip
        chat.stdin.write("Count.\nAnd again.\n")
        chat.stdin.flush()
        until(chat.stdout, "text")
        chat.send_signal(signal.SIGINT)
        assert "cancelled" == until(chat.stdout, "response_end")["status"]
        assert 2 == until(chat.stdout, "idle")["heard"]
        assert 130 == chat.wait(BOUND)  # and sends no other line
        assert "" == chat.stderr.read()
        assert ["Count."] == [each.text for each in fake.heard if each.kind == "user"]
    assert [] == fake.violations


def until(lines, kind: str):
    for line in lines:
        frame = json.loads(line)
        if kind == frame["type"] and (kind != "idle" or frame["heard"]):
            return frame
    raise AssertionError(f"no {kind}")


@contextlib.contextmanager
def stopped(process: Process):
    """Let nothing be waited for longer than the bound."""
    timer = threading.Timer(BOUND, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        process.kill()


class Screen:
    """A terminal: what it was sent, and its keyboard."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, text: str) -> str:
        """Wait for a text, and return what was before it."""
        while text not in self._seen:
            self._seen += os.read(self._terminal, 4096).decode()
        before, _, self._seen = self._seen.partition(text)
        return before


@contextlib.contextmanager
def on_a_terminal(server: Serving, *flags: str) -> Iterator[tuple[Process, Screen]]:
    ours, theirs = pty.openpty()
    with Process(
        command(server, *flags), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as chat, stopped(chat):  # fmt: skip
        os.close(theirs)
        yield chat, Screen(ours)
    os.close(ours)


def test_terminal_chat_prompts_and_accepts_input_during_an_answer():
    begun = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "One two"}, "finish_reason": None}]}
    script = [Raw([events(begun, done=False)], end="hang"), "Yes?"]
    with ScriptedUpstream(script) as upstream, serving(upstream=upstream.url) as server, on_a_terminal(server) as (chat, screen):
        assert "ann with scripted-model; no tools" in screen.until("> ")
        screen.type("Count.\n")
        assert "Count.\r\n" == screen.until("One")  # it was prompted once
        screen.type("Stop that.\n")
        screen.until("(cancelled)")
        screen.until("Yes?\r\n> ")
        screen.type("\x04")
        screen.until("\r\n")  # what comes next begins a line
        assert 0 == chat.wait(BOUND)


class SeveralModels(ScriptedUpstream):
    """An upstream that lists three models."""

    def _answer(self, request: Recorded) -> Raw:
        if not request.path.endswith("/models"):
            return super()._answer(request)
        models = [{"id": name} for name in ("large", "small", "\x1b[31mred")]
        return Raw([json.dumps({"data": models}).encode()], content_type="application/json")


@pytest.mark.parametrize("chosen", ["2\n", "9\n\nnothing\nsmall\n"])
def test_terminal_chat_shows_model_and_tools_and_offers_a_choice_of_models(chosen: str):
    with (
        SeveralModels(["Hello."]) as upstream,
        calling_back(json_response({})) as callback,
        serving(upstream=upstream.url) as server,
    ):
        server.http.register("get_weather", callback.url, role="ann")
        with on_a_terminal(server) as (chat, screen):
            listed = screen.until("Model (number or name): ")
            assert ["1  large", "2  small", "3  \\u001b[31mred"] == [line.strip() for line in listed.splitlines()]
            screen.type(chosen)
            for wrong in filter(None, chosen.splitlines()[:-1]):
                screen.until(f"There is no model '{wrong}': enter a number up to 3, or a name.")
            assert "ann with small; 1 tool: get_weather" in screen.until("> ")
            screen.type("Hi.\n")
            screen.until("Hello.")
            screen.until("> ")
            screen.type("\x04")
            assert 0 == chat.wait(BOUND)
        assert "small" == upstream.chats[0].json["model"]


def test_a_terminal_chat_with_an_unknown_role_does_not_ask_for_a_model():
    with (
        SeveralModels([]) as upstream,
        serving(upstream=upstream.url) as server,
        on_a_terminal(server, "--role", "nosuch") as (chat, screen),
    ):
        assert "" == screen.until("patchbay: There is no role 'nosuch' here, but ann")
        assert 1 == chat.wait(BOUND)


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_ctrl_c_and_ctrl_d_end_the_choice_of_a_model(key: str):
    with SeveralModels([]) as upstream, serving(upstream=upstream.url) as server, on_a_terminal(server) as (chat, screen):
        screen.until("Model (number or name): ")
        screen.type(key if key == "\x04" else "")
        while chat.poll() is None:  # one that comes just before the process waits for input is only noticed with the next
            if key == "\x03":
                chat.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                chat.wait(1)
        assert 130 == chat.returncode


def test_several_models_for_a_pipe_are_an_error_that_names_them_before_any_request():
    with SeveralModels([]) as upstream, serving(upstream=upstream.url) as server:
        done = chatted(server, lines="Hi.")
        assert [] == upstream.chats
    assert (1, "") == (done.returncode, done.stdout)
    assert "has several models (large, small, " in done.stderr
    assert "--model NAME" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--role", "nobody"], "nobody"),
        (
            ["--model", "small"],
            "no model for chats: start it with patchbay serve --upstream URL, or talk to its realtime one, --realtime",
        ),
        (["--realtime", "--model", "nobody/x"], "There is no provider"),
    ],
)
def test_refused_chat_is_a_one_line_error(shared: Serving, flags: list[str], message: str):
    done = chatted(shared, *flags)
    assert (1, "") == (done.returncode, done.stdout)
    (line,) = done.stderr.splitlines()
    assert message in line


def test_role_in_use_error_names_the_takeover_flag(shared: Serving):
    shared.plays("Hello.")
    with shared.session() as client:
        assert chatted(shared, "--realtime").stderr.endswith("--takeover takes over from it.\n")
        assert "Hello.\n" == chatted(shared, "--realtime", "--takeover", lines="Hi.").stdout
        assert 4410 == client.ended()[0]


def test_chat_with_a_foreign_server_is_an_error():
    with ScriptedUpstream([]) as upstream:
        command = [sys.executable, "-m", "patchbay", "chat", "--server", upstream.url.removesuffix("/v1")]
        done = run_process(command, input="", capture_output=True, text=True, timeout=BOUND)
    assert 1 == done.returncode
    assert "not a Patchbay server" in done.stderr


@pytest.mark.parametrize("flags", [[], ["--api-key", "a-key-of-this-test"], ["--config"]])
def test_chat_with_a_proxy_says_that_it_is_one_and_what_to_use(flags: list[str], tmp_path):
    if "--config" in flags:
        (file := tmp_path / "hooks.toml").write_text("")
        flags = [*flags, str(file), "--store", "memory"]
    proxy = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", "http://127.0.0.1:9/v1", *flags]
    with listening(proxy, name="proxy") as server:
        done = run_process([*CHAT, "--server", server.url], input="", capture_output=True, text=True, timeout=BOUND)
    assert (1, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(
        "patchbay: This is a proxy, or another server with OpenAI's API, which has no live sessions: use"
    )
    assert "--token-file" not in done.stderr


@pytest.mark.parametrize("length", [70_000, 3_000_000])
def test_overlong_line_fails_as_a_whole_and_the_next_is_answered(length: int):
    with ScriptedUpstream(["Fine."]) as upstream, serving(upstream=upstream.url) as server:
        done = chatted(server, lines=f"{chr(233) * length}\nHello.\n")
        assert ["Hello."] == [chat.json["messages"][-1]["content"] for chat in upstream.chats], done
    assert (1, "Fine.\n") == (done.returncode, done.stdout)
    assert ["error: the line is longer than 65536 characters and was not sent"] == [
        each.strip() for each in done.stderr.splitlines()
    ]


def test_terminal_with_few_characters_shows_the_others_by_name(shared: Serving):
    shared.plays("21 \u00b0C")
    done = subprocess.run(
        command(shared, "--realtime"),
        input=b"caf\xe9\n",  # which is not UTF-8 either
        capture_output=True,
        timeout=BOUND,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (0, b"21 \\xb0C\n", b"") == (done.returncode, done.stdout, done.stderr)


def test_lost_server_is_reported_on_its_own_line():
    with FakeOpenAI() as fake, serving(fake) as server, on_a_terminal(server, "--realtime") as (chat, screen):
        screen.until("> ")
        os.kill(server.pid, signal.SIGKILL)
        assert "\r\n" == screen.until("patchbay: connection lost\r\n")
        assert 1 == chat.wait(BOUND)


def test_chat_errors_distinguish_missing_sessions_server_and_token(tmp_path):
    file = tmp_path / "token"
    file.write_text("a-token-of-this-server")
    file.chmod(0o600)
    with serving() as server:
        assert "start it with --realtime" in chatted(server).stderr
    assert chatted(server).stderr.endswith(": Connection refused. Start `patchbay serve`, or use --server.\n")
    with FakeOpenAI(["Hello."]) as fake, serving(fake, "--token-file", str(file)) as server:
        assert "--token-file" in chatted(server, "--realtime").stderr
        assert "Hello.\n" == chatted(server, "--realtime", "--token-file", str(file), lines="Hi.").stdout


def test_a_failure_in_a_pipe_is_an_exit_status():
    with ScriptedUpstream([]) as upstream, serving(upstream=upstream.url) as server:
        done = chatted(server, "--model", "small", lines="Hi.")
    assert (1, "") == (done.returncode, done.stdout)
    assert "script is over" in done.stderr


class Page(TextView):
    """The view of a chat whose input is a pipe, in memory."""

    def __init__(self) -> None:
        self.out, self.side = io.StringIO(), io.StringIO()
        super().__init__(self.out, self.side, prompts=False, colour=False)


@pytest.fixture
def view() -> Page:
    return Page()


def test_chat_output_has_no_control_sequences(view: Page):
    for delta in ("a\x1b", "[2Jb\n", "c\x1b[31md\x1b[0m", "\r\x9b2Je"):
        view.show({"type": "text", "delta": delta})
    view.show({"type": "tool_result", "name": "x", "content": "one\x1b[2J\ntwo " + "y" * 500})
    for kind in ("nothing that is known", "dim", "say", "end_line", None):
        view.show({"type": kind})
    notes = view.side.getvalue()
    assert "a\\x1b[2Jb\ncd\\x0d\\x9b2Je\n" == view.out.getvalue()
    assert notes.startswith("  -> one\\x1b[2J two yyy")
    assert "\x1b" not in notes
    assert len(notes) < 250


def test_dropped_events_are_reported_as_an_error(view: Page):
    for frame in (
        {"type": "text", "delta": "One "},
        {"type": "dropped", "what": "events", "count": 421},
        {"type": "text", "delta": "two."},
    ):
        view.show(frame)
    view.show({"type": "dropped", "what": "result", "name": "x", "count": 1})
    view.close()
    assert "One \ntwo.\n" == view.out.getvalue()
    assert "error: 421 events are missing" in view.side.getvalue()


def test_unplanned_connection_loss_is_printed_and_a_planned_one_is_not(view: Page):
    for planned in (True, False):
        view.show({"type": "connection", "state": "lost", "reason": "another one is opened", "planned": planned})
        view.show({"type": "connection", "state": "open", "reason": "", "planned": False})
    assert 1 == view.side.getvalue().count("connection to the model lost")


@pytest.mark.parametrize(("frame", "status"), [({"what": "events", "count": 2}, 1), ({"what": "result", "count": 1}, 0)])
def test_events_that_are_missing_are_an_exit_status(frame: dict[str, object], status: int):
    with scripted_server({"type": "ready"}, {"type": "dropped", **frame}, {"type": "idle", "heard": 0}) as url:
        done = run_process([*CHAT, "--server", url], input="", capture_output=True, text=True, timeout=BOUND)
    assert status == done.returncode, done


CHAT = [sys.executable, "-m", "patchbay", "chat"]


@contextlib.contextmanager
def scripted_server(*frames: dict[str, object], code: int = 0, reason: str = ""):
    """A server that tells just this; with ``code`` it ends the talk at the first thing that it hears."""

    def talk(socket) -> None:
        for frame in frames:
            socket.send(json.dumps(frame))
        for _ in socket:
            if code:
                socket.close(code, reason)

    with serve(talk, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join(BOUND)


@pytest.mark.parametrize("code", [1000, 1001, 1012, 4410])
def test_session_closed_by_the_server_is_a_failure_with_its_reason(code: int):
    with scripted_server({"type": "ready"}, code=code, reason="the server stops") as url:
        done = run_process([*CHAT, "--server", url], input="One.\nTwo.\n", capture_output=True, text=True, timeout=BOUND)
    assert (1, "patchbay: the server stops\n") == (done.returncode, done.stderr)


def test_unwritable_output_is_a_one_line_error(shared: Serving):
    shared.plays("Hello.")
    with Path("/dev/full").open("w") as full:
        done = run_process(
            command(shared, "--realtime"), input="Hi.\n", stdout=full, stderr=subprocess.PIPE, text=True, timeout=BOUND
        )
    assert (1, "patchbay: cannot write the output: No space left on device\n") == (done.returncode, done.stderr)


def test_ctrl_c_during_startup_has_no_traceback(monkeypatch: pytest.MonkeyPatch):
    def interrupted(_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("patchbay.cli.commands.run", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["chat"])
    assert 130 == ended.value.code


def test_server_url_with_a_path_is_an_error_that_names_the_base_url(shared: Serving):
    done = run_process([*CHAT, "--server", f"{shared.url}/nowhere"], input="", capture_output=True, text=True, timeout=BOUND)
    assert 1 == done.returncode
    assert f"--server must be the base URL: {shared.url}" in done.stderr
