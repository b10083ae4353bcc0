"""Approval at a terminal: rendering of requests, parsing of answers, and the approver of this process's own terminal.

Names and arguments are escaped: a model's text never reaches the terminal as control characters, so it cannot imitate the
question.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import re
import time
from collections import deque
from dataclasses import replace
from typing import Any, Final

from patchbay._subprocess import LineReader, Overlong
from patchbay._text import printable
from patchbay.approvals.permissions import Criterion, Permission
from patchbay.approvals.request import Answer, ApprovalRequest, SessionGrant, State

MAX_LINE: Final = 4096
"""Maximum bytes of a typed line; a longer one is not an answer."""

_NOT_AWAITED: Final = {
    State.PENDING: "no run waits for it: a yes is for the same call of this session, when it comes again",
    State.APPROVED: "no run waits for it: runs when the call comes again in this session",
    State.DENIED: "no run waits for it: denied when the call comes again in this session",
}
_BARE: Final = re.compile(r"[^\s\d\"',=\\\[\]{}-][^\s\"',=\\]*")
_CHARACTERS: Final = 1_200
_LINES: Final = 16


def render(request: ApprovalRequest, *, whole: bool = False) -> str:
    """Render a request; long arguments are cut unless ``whole``."""
    source = f"  from {request.source}" if request.source else ""
    endpoint = f" at {request.endpoint}" if request.endpoint else ""
    lines = [f"{request.id}  {printable(request.tool)}{printable(source + endpoint)}"]
    origin = {
        "role": request.role,
        "agent": request.agent,
        "for turn": request.parent_turn,
        "session": request.session_key,
        "rule": request.rule,
    }
    if parts := [f"{name} {printable(value)}" for name, value in origin.items() if value]:
        lines.append(f"  {', '.join(parts)}")
    if request.why:
        lines.append(f"  asked for by {printable(request.why)}")
    text = _pretty(request.arguments)
    visible = text if whole else _cut(text)
    lines += [f"  {printable(line)}" for line in visible.split("\n")]
    if left := len(text) - len(visible):
        lines.append(f"  [{left} more characters: v here, or `patchbay approvals show {request.id}`, shows them]")
    if request.facts:
        facts = ", ".join(f"{_render_fact(name)}={_render_fact(value)}" for name, value in request.facts.items())
        lines.append(f"  really: {printable(facts)}")
    lines.append(f"  {request.digest}")
    if request.state is State.PENDING and not request.awaited:
        lines.append(f"  {_NOT_AWAITED[State.PENDING]}")
    return "\n".join(lines)


def render_question(request: ApprovalRequest, now: float) -> str:
    """Render the question on one line, with the possible answers."""
    choices = ["[y]es", "[n]o, or n and why"]
    if request.session == "tool":
        choices.append(f"[s] {_covered_calls(request)} in this session")
    elif request.session == "call":
        choices.append("[s] this call whenever it comes in this session")
    if request.parameters is not None:
        choices.append("e {...} with other arguments")
    if len(text := _pretty(request.arguments)) > len(_cut(text)):
        choices.append("[v]iew all")
    return f"May it run? {', '.join(choices)} ({render_deadline(request, now)}): "


def render_deadline(request: ApprovalRequest, now: float) -> str:
    """Render the time left to decide, and the outcome without a decision."""
    outcome = "carried out" if request.at_deadline == "allow" else "denied"
    return f"{_duration(request.deadline - now)}, then it is {outcome}"


def render_outcome(request: ApprovalRequest) -> str:
    """Render the state of a request on one line, and for a decision that no run waited for what it applies to."""
    scope = " for the session" if request.for_session else " and always allowed" if request.for_always else ""
    words = f"{request.state}{scope}" if request.state is State.APPROVED else str(request.state)
    by = f" by {printable(request.by)}" if request.by else ""
    reason = f": {printable(request.reason)}" if request.reason else ""
    edited = f" with {printable(json.dumps(request.edited))}" if request.edited is not None else ""
    counts = request.awaited or request.for_session or request.for_always or request.used is not None
    is_unused = request.state is not State.PENDING and not counts
    later = f" ({_NOT_AWAITED[request.state]})" if is_unused and request.state in _NOT_AWAITED else ""
    return f"{request.id}  {printable(request.tool)}  {words}{edited}{by}{reason}{later}"


def render_grant(grant: SessionGrant, now: float) -> str:
    """Render an approval for a session: its request, and how long it is in force."""
    request = grant.request
    by = f" by {printable(request.by)}" if request.by else ""
    left = _duration(grant.until - now)
    return f"{render(request)}\n  {_covered_calls(request)} in this session is approved{by}, for {left} more"


def render_revoked(grant: SessionGrant) -> str:
    """Render on one line that an approval for a session was revoked."""
    request = grant.request
    calls = f"{_covered_calls(request)} in session {printable(request.session_key)}"
    return f"{request.id}  {printable(request.tool)}  taken back: {calls} is asked about again"


def render_permission(permission: Permission) -> str:
    """Render a standing permission: the calls that it covers, a line for each argument and fact."""
    by = f" by {printable(permission.by)}" if permission.by else ""
    from_, at = (
        f" {word} {printable(value)}" if value else ""
        for word, value in (("from", permission.source), ("at", permission.endpoint))
    )
    lines = [f"{permission.id}  {printable(permission.tool)}{from_}{at}  always allowed{by}"]
    origin = {"role": permission.role, "agent": permission.agent, "rule": permission.rule}
    if parts := [f"{name} {printable(value)}" for name, value in origin.items() if value]:
        lines.append(f"  {', '.join(parts)}")
    criteria = [*permission.arguments.items(), *((f"really {name}", each) for name, each in permission.facts.items())]
    lines += [f"  {printable(name)}: {printable(render_criterion(each))}" for name, each in criteria]
    return "\n".join([*lines, "  and no other arguments"])


def render_criterion(criterion: Criterion) -> str:
    """Return what a permission takes as a value, in words."""
    if "is" in criterion:
        return json.dumps(criterion["is"], ensure_ascii=False)
    if "below" in criterion:
        return f"a path below {criterion['below']}"
    return "any value, or none" if "any" in criterion else "the same value as in that call, which is not written out"


def parse_answer(line: str, request: ApprovalRequest) -> Answer | str:
    """Parse a typed line: an Answer, or what to print before the next question (all arguments, an error, a hint, or nothing)."""
    command, _, rest = line.strip().partition(" ")
    command, rest = command.lower(), rest.strip()
    if command in ("n", "no"):
        return Answer("deny", rest)
    if command in ("e", "edit") and rest:
        try:
            request.check_edited(arguments := json.loads(rest))
        except (ValueError, RecursionError) as error:
            return printable(str(error))
        return Answer("approve", arguments=arguments)
    if command in ("y", "yes") and not rest:
        return Answer("approve")
    if command in ("s", "session") and not rest and request.session != "never":
        return Answer("approve_session")
    if command in ("v", "view") and not rest:
        return render(request, whole=True)
    if not command:
        return ""
    return "answer y, n or v" if request.session == "never" else "answer y, n, s or v"


def _covered_calls(request: ApprovalRequest) -> str:
    if request.session == "call":
        return "this call"
    return f"every call of {printable(request.tool)}{' that is really about the same' if request.facts else ''}"


def _render_fact(value: Any) -> str:
    """Return a text unquoted if it cannot be mistaken for another fact or for another JSON value."""
    if isinstance(value, str) and value.isprintable() and _BARE.fullmatch(value) and value not in ("true", "false", "null"):
        return value
    return json.dumps(value, ensure_ascii=False)


def _pretty(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _cut(text: str) -> str:
    """Cut arguments so that the question fits on the same screen."""
    return "\n".join(text[:_CHARACTERS].split("\n")[:_LINES])


def _duration(seconds: float) -> str:
    left = max(0, round(seconds))
    if left < 120:
        return f"{left} s"
    return f"{left // 60} min" if left < 7200 else f"{left // 3600} h"


class LineBuffer:
    """Splits typed bytes into lines; a line that is too long becomes an empty one."""

    def __init__(self) -> None:
        self.clear()

    def feed(self, data: bytes) -> None:
        """Add typed bytes."""
        self._lines += self._reader.feed(data)

    def next(self) -> str | None:
        """Return the next complete line, or None."""
        if not self._lines:
            return None
        line = self._lines.popleft()
        return "" if isinstance(line, Overlong) else line.decode("utf-8", "replace")

    def clear(self) -> None:
        """Discard what was typed."""
        self._reader = LineReader(MAX_LINE)
        self._lines: deque[bytes | Overlong] = deque()


class TerminalApprover:
    """Asks the person at this process's terminal: for ``ApprovalService(policy, terminal=TerminalApprover())``.

    It opens the terminal itself (``path``), independent of standard input and output, and discards what was typed before the
    question.
    """

    def __init__(self, path: str = "/dev/tty") -> None:
        self._path = path
        self._lock = asyncio.Lock()

    async def ask(self, request: ApprovalRequest) -> Answer | None:
        """Return the answer; None if there is no terminal, or it was closed."""
        async with self._lock:
            try:
                terminal = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return None
            try:
                return await _ask(terminal, request)
            except asyncio.CancelledError:
                with contextlib.suppress(OSError):  # without waiting for a terminal that is stopped
                    os.write(terminal, b"(no answer is needed any more)\n")
                raise
            finally:
                os.close(terminal)


async def _ask(terminal: int, request: ApprovalRequest) -> Answer | None:
    await _write(terminal, f"\n{render(request)}\n")
    discard_input(terminal)
    await _write(terminal, render_question(request, time.time()))
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    lines = LineBuffer()
    loop.add_reader(terminal, readable.set)
    try:
        while (line := await _next_line(terminal, lines, readable)) is not None:
            answer = parse_answer(line, request)
            if isinstance(answer, Answer):
                return replace(answer, by=user_name() or "terminal")
            if answer:
                await _write(terminal, f"{answer}\n")
            await _write(terminal, render_question(request, time.time()))
    finally:
        loop.remove_reader(terminal)
    return None


async def _next_line(terminal: int, lines: LineBuffer, readable: asyncio.Event) -> str | None:
    while (line := lines.next()) is None:
        await readable.wait()
        readable.clear()
        try:
            data = os.read(terminal, MAX_LINE)
        except BlockingIOError:
            continue
        except OSError:  # the terminal was closed
            return None
        if not data:
            return None
        lines.feed(data)
    return line


async def _write(terminal: int, text: str) -> None:
    """Write to the terminal without blocking the event loop while its output is stopped (Ctrl-S)."""
    left = memoryview(text.encode("utf-8", "backslashreplace"))
    loop = asyncio.get_running_loop()
    while left:
        try:
            left = left[os.write(terminal, left) :]
        except BlockingIOError:
            writable = asyncio.Event()
            loop.add_writer(terminal, writable.set)
            try:
                await writable.wait()
            finally:
                loop.remove_writer(terminal)
        except OSError:
            return


def discard_input(terminal: int) -> None:
    """Discard what was typed before the question was visible."""
    with contextlib.suppress(ImportError, OSError):
        import termios

        with contextlib.suppress(termios.error):
            termios.tcflush(terminal, termios.TCIFLUSH)


def user_name() -> str:
    """Return the name of this process's user, "" for a user without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
