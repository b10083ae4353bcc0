"""A request as a person at a terminal is shown it, and what they type to it.

What lives here: words. What does not: the terminal (``terminal``, and ``patchbay.cli.approvals``). Names and arguments are
whatever a model wrote: nothing of them reaches the terminal as a control character, so no argument can pass for the question.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any, Final

from patchbay.approvals.request import Answer, ApprovalRequest, SessionGrant, State
from patchbay.legible import printable

_LATER: Final = {
    State.PENDING: "no run waits for it: a yes is for the same call of this session, when it comes again",
    State.APPROVED: "no run waits for it: runs when the call comes again in this session",
    State.DENIED: "no run waits for it: denied when the call comes again in this session",
}
"""What is said of requests whose run has ended without a decision."""

_BARE: Final = re.compile(r"[^\s\d\"',=\\\[\]{}-][^\s\"',=\\]*")

_CHARACTERS: Final = 1_200
_LINES: Final = 16

VIEW: Final = "view"
"""What is typed to see arguments that were cut."""


def written(request: ApprovalRequest, *, whole: bool = False) -> str:
    """Return the request in lines: what is to run, with what, for whom."""
    from_ = f"  from {request.source}" if request.source else ""
    at_ = f" at {request.endpoint}" if request.endpoint else ""
    lines = [f"{request.id}  {printable(request.tool)}{printable(from_ + at_)}"]
    whose = {
        "role": request.role,
        "agent": request.agent,
        "for turn": request.parent_turn,
        "session": request.session_key,
        "rule": request.rule,
    }
    about = [f"{name} {printable(said)}" for name, said in whose.items() if said]
    if about:
        lines.append(f"  {', '.join(about)}")
    if request.why:
        lines.append(f"  asked for by {printable(request.why)}")
    text = _pretty(request.arguments)
    shown = text if whole else _screenful(text)
    lines += [f"  {printable(line)}" for line in shown.split("\n")]
    if left := len(text) - len(shown):
        lines.append(f"  [{left} more characters: v here, or `patchbay approvals show {request.id}`, shows them]")
    if request.facts:
        facts = ", ".join(f"{_word(name)}={_word(value)}" for name, value in request.facts.items())
        lines.append(f"  really: {printable(facts)}")
    lines.append(f"  {request.digest}")
    if request.state is State.PENDING and not request.awaited:
        lines.append(f"  {_LATER[State.PENDING]}")
    return "\n".join(lines)


def question(request: ApprovalRequest, now: float) -> str:
    """Return what is asked, on one line."""
    choices = ["[y]es", "[n]o, or n and why"]
    if request.session == "tool":
        choices.append(f"[s] {_calls(request)} in this session")
    elif request.session == "call":
        choices.append("[s] this call whenever it comes in this session")
    if request.parameters is not None:
        choices.append("e {...} with other arguments")
    if len(text := _pretty(request.arguments)) > len(_screenful(text)):
        choices.append("[v]iew all")
    return f"May it run? {', '.join(choices)} ({time_left(request, now)}): "


def time_left(request: ApprovalRequest, now: float) -> str:
    """Return how long there is to decide, and what silence means."""
    silence = "carried out" if request.at_deadline == "allow" else "denied"
    return f"{_time(request.deadline - now)}, then it is {silence}"


def read_answer(line: str, request: ApprovalRequest) -> Answer | str:
    """Return what somebody typed as an Answer; ``VIEW``; what is wrong with edited arguments; or "" for what is no answer."""
    word, _, rest = line.strip().partition(" ")
    word, rest = word.lower(), rest.strip()
    if word in ("n", "no"):
        return Answer("deny", rest)
    if word in ("e", "edit") and rest:
        try:
            request.check_edited(arguments := json.loads(rest))
        except (ValueError, RecursionError) as error:
            return str(error)
        return Answer("approve", arguments=arguments)
    if rest:
        return ""
    if word in ("y", "yes"):
        return Answer("approve")
    if word in ("s", "session") and request.session != "never":
        return Answer("approve_session")
    return VIEW if word in ("v", "view") else ""


def hint(request: ApprovalRequest) -> str:
    """Return what may be typed, for whoever has typed something else."""
    return "answer y, n or v" if request.session == "never" else "answer y, n, s or v"


def outcome(request: ApprovalRequest) -> str:
    """Return what became of a request, on one line; of a decision that no run has waited for, what it is good for."""
    words = "approved for the session" if request.for_session and request.state is State.APPROVED else str(request.state)
    by = f" by {printable(request.by)}" if request.by else ""
    reason = f": {printable(request.reason)}" if request.reason else ""
    words += f" with {printable(json.dumps(request.edited))}" if request.edited is not None else ""
    is_for_later = request.state is not State.PENDING and not (request.awaited or request.for_session or request.used is not None)
    later = f" ({_LATER[request.state]})" if is_for_later and request.state in _LATER else ""
    return f"{request.id}  {printable(request.tool)}  {words}{by}{reason}{later}"


def granted(grant: SessionGrant, now: float) -> str:
    """Return an approval for a session, in lines: for which calls it is, whose, and until when."""
    request = grant.request
    by = f" by {printable(request.by)}" if request.by else ""
    return f"{written(request)}\n  {_calls(request)} in this session is approved{by}, for {_time(grant.until - now)} more"


def taken_back(grant: SessionGrant) -> str:
    """Return on one line that an approval for a session does not hold any more."""
    request = grant.request
    session = printable(request.session_key)
    return f"{request.id}  {printable(request.tool)}  taken back: {_calls(request)} in session {session} is asked about again"


def _calls(request: ApprovalRequest) -> str:
    if request.session == "call":
        return "this call"
    return f"every call of {printable(request.tool)}{' that is really about the same' if request.facts else ''}"


def _word(value: Any) -> str:
    """Return a text as it is where it can pass for nothing else: for another fact, or for a value that is no text."""
    if isinstance(value, str) and value.isprintable() and _BARE.fullmatch(value) and value not in ("true", "false", "null"):
        return value
    return json.dumps(value, ensure_ascii=False)


def _pretty(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _screenful(text: str) -> str:
    """Return as much of arguments as leaves room for the question on a screen."""
    return "\n".join(text[:_CHARACTERS].split("\n")[:_LINES])


def _time(seconds: float) -> str:
    left = max(0, round(seconds))
    if left < 120:
        return f"{left} s"
    return f"{left // 60} min" if left < 7200 else f"{left // 3600} h"


def at(seconds: float) -> str:
    """Return the time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))
