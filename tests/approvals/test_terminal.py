"""A person at the terminal of the program: a real one (pty), what is shown on it, and what is typed."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import pty
import select
from collections.abc import Iterator

import pytest

from patchbay.approvals import ApprovalPolicy, ApprovalRequest, Rule, State, TerminalApprover
from patchbay.approvals.request import Answer
from patchbay.approvals.terminal import MAX_LINE, LineBuffer, parse_answer, render, render_outcome, render_question

from .approval_calls import LONG, NO_SESSION, Files, call_of, executor_of, running_calls, service_at, stop, waiting

ASK = ApprovalPolicy(otherwise=Rule(name="all", deadline=600, who=("terminal",)))


class TerminalUser:
    """The master end of a pseudo-terminal, as its user."""

    def __init__(self) -> None:
        self.master, self._slave = pty.openpty()
        os.set_blocking(self.master, False)
        self.approver = TerminalApprover(os.ttyname(self._slave))
        self.is_closed = False
        self.read = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # what is read may end within a character

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            os.close(self._slave)
            os.close(self.master)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    async def seen(self, text: str, *, since: int = 0) -> int:
        """Wait until the text is on the screen, and return where it ends."""
        async with asyncio.timeout(LONG):
            while (at := self.read.find(text, since)) < 0:
                await asyncio.sleep(0)
                with contextlib.suppress(BlockingIOError):
                    self.read += self._decoder.decode(os.read(self.master, 65536))
        return at + len(text)


@pytest.fixture
def typist() -> Iterator[TerminalUser]:
    """The user of a new pseudo-terminal; ``close`` hangs it up."""
    user = TerminalUser()
    try:
        yield user
    finally:
        user.close()


def contents(executions) -> list[str]:
    return [each.content for each in executions]


async def test_call_is_shown_and_approved_at_the_terminal(typist):
    files = Files()
    async with service_at(policy=ASK, terminal=typist.approver) as service:
        task = running_calls(executor_of(service, files), call_of())
        await typist.seen("May it run?")
        typist.type("y\n")
        await task
        [done] = await service.recent()
    assert (["/a"], State.APPROVED) == (files.deleted, done.state)
    assert done.by
    for shown in (
        "delete",
        '"path": "/a"',
        "agent helper",
        "for turn turn-1",
        "session s1",
        done.digest,
        "[s] every call of delete",
    ):
        assert shown in typist.read


async def test_denial_may_have_a_reason_and_invalid_answers_repeat_the_prompt(typist):
    async with service_at(policy=ASK, terminal=typist.approver) as service:
        task = running_calls(executor_of(service, Files()), call_of(), scope=NO_SESSION)
        at = await typist.seen("May it run?")
        for word in ("", "maybe", "yes please", "s"):  # it is of no session
            typist.type(f"{word}\n")
            at = await typist.seen("May it run?", since=at)
        typist.type("n not that one\n")
        assert ["Tool execution denied by a person: not that one"] == contents(await task)
    assert "[s]" not in typist.read
    assert 3 == typist.read.count("answer y, n or v\r\n")


async def test_terminal_prompts_one_request_at_a_time_and_ignores_earlier_input(typist):
    files = Files()
    async with service_at(policy=ASK, terminal=typist.approver) as service:
        tasks = [running_calls(executor_of(service, files), call_of(each)) for each in ("/first", "/second")]
        at = await typist.seen("May it run?")
        await waiting(service, 2)
        assert "/second" not in typist.read
        typist.type("y\ny\ny\n")
        at = await typist.seen("May it run?", since=at)
        typist.type("n\n")
        await asyncio.gather(*tasks)
        assert ["/first"] == files.deleted


async def test_stopped_run_removes_its_prompt(typist):
    async with service_at(policy=ASK, terminal=typist.approver) as service:
        task = running_calls(executor_of(service, Files()), call_of())
        await typist.seen("May it run?")
        await stop(task)
        await typist.seen("no answer is needed any more")
        [done] = await service.recent()
        assert State.WITHDRAWN == done.state


async def test_call_is_denied_without_a_terminal():
    async with service_at(policy=ASK, terminal=TerminalApprover("/nowhere/tty")) as service:
        assert ["Tool execution denied by approval hook: no person is at the terminal"] == contents(
            await running_calls(executor_of(service, Files()), call_of())
        )


async def test_terminal_closed_during_a_prompt_denies(typist):
    async with service_at(policy=ASK, terminal=typist.approver) as service:
        task = running_calls(executor_of(service, Files()), call_of())
        await typist.seen("May it run?")
        typist.close()
        assert ["Tool execution denied by approval hook: no person is at the terminal"] == contents(await task)


async def test_unread_terminal_blocks_nothing_else(typist):
    """After Ctrl-S or on a slow line the prompt blocks, and the program continues."""
    files = Files()
    policy = ApprovalPolicy(otherwise=Rule(deadline=600))
    async with service_at(policy=policy, terminal=typist.approver) as service:
        task = running_calls(executor_of(service, files), call_of("x" * 200_000))
        at = await typist.seen("May it run?")
        typist.type("v\n")
        [request] = await waiting(service)
        while await asyncio.to_thread(select.select, [typist.master], [], [], LONG) == ([], [], []):
            pass  # its output is not read
        await asyncio.sleep(0)
        await service.decide(request.id, "approve")
        await task
        await typist.seen("xxx", since=at)
        assert 1 == len(files.deleted)


def test_too_long_line_is_not_an_answer_wherever_it_begins_or_ends():
    typed = LineBuffer()
    for piece in (b"y" + b" " * MAX_LINE, b"no", b"\ny", b"\n", b" " * (MAX_LINE + 1) + b"y\nn\n", b"\xff\n"):
        typed.feed(piece)
    assert ["", "y", "", "n", "\ufffd", None] == [typed.next() for _ in range(6)]
    typed.feed(b"y")
    typed.clear()
    typed.feed(b"\n")
    assert "" == typed.next()


# What is shown


def request(**about) -> ApprovalRequest:
    given = {
        "id": "0" * 12,
        "created": 0.0,
        "deadline": 100.0,
        "tool": "delete",
        "arguments": "{}",
        "digest": "sha256:0",
        "session": "tool",
    }
    return ApprovalRequest(**{**given, **about})


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x9b31m", "\r\nMay it run? ", "a\u202eb", "\x00", "\u2028", "\ud800", "\x07"])
def test_call_text_reaches_the_terminal_without_control_characters(hostile):
    import json

    shown = request(
        tool=hostile,
        source=hostile,
        agent=hostile,
        session_key=hostile,
        arguments=json.dumps({hostile: hostile}),
        by=hostile,
        reason=hostile,
    )
    for text in (render(shown), render(shown, whole=True), render_question(shown, 0), render_outcome(shown)):
        assert all(each.isprintable() for each in text.replace("\n", ""))
        assert hostile not in text
    assert 1 == len(render_question(shown, 0).splitlines())


HINT = "answer y, n, s or v"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y", Answer("approve")), (" YES ", Answer("approve")), ("n", Answer("deny")), ("no", Answer("deny")),
        ("N not that  one ", Answer("deny", "not that  one")), ("s", Answer("approve_session")),
        ("v", render(request(), whole=True)), ("", ""), ("yy", HINT), ("y n", HINT), ("yes, but", HINT), ("\x00", HINT), ("ｙ", HINT),
    ],
)  # fmt: skip
def test_only_a_plain_yes_is_one(line, expected):
    assert expected == parse_answer(line, request())


def test_prompt_states_the_timeout_outcome_and_the_session_scope():
    assert "100 s, then it is denied" in render_question(request(), 0)
    assert "2 min, then it is carried out" in render_question(request(deadline=120, at_deadline="allow"), 0)
    assert "5 h" in render_question(request(deadline=5 * 3600), 0)
    assert "this call whenever it comes" in render_question(request(session="call"), 0)
    assert "[s]" not in render_question(request(session="never"), 0)


def test_decision_without_a_waiting_run_is_shown_as_for_the_next():
    later = "(no run waits for it: {} when the call comes again in this session)"
    approved, denied = (
        request(state=State.APPROVED, by="ann", awaited=False),
        request(state=State.DENIED, reason="no", awaited=False),
    )
    assert f"000000000000  delete  approved by ann {later.format('runs')}" == render_outcome(approved)
    assert f"000000000000  delete  denied: no {later.format('denied')}" == render_outcome(denied)
    for about in ({"awaited": True}, {"used": 1.0}, {"for_session": True}):
        assert "no run" not in render_outcome(request(state=State.APPROVED, **about))
    assert "no run waits for it" in render(request(awaited=False))
    assert "no run" not in render(request(awaited=True)) + render(approved)


def test_outcome_of_a_request_is_one_line():
    assert "000000000000  delete  approved for the session by ann: fine" == render_outcome(
        request(state=State.APPROVED, for_session=True, by="ann", reason="fine")
    )
    assert "000000000000  delete  withdrawn" == render_outcome(request(state=State.WITHDRAWN))
