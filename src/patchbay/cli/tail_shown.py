"""Events of a server's turns as lines that people read. What lives here: words and marks. What does not: where events are from.

What is in an event is whatever people, models and tools wrote: nothing of it reaches the terminal as a control character.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from patchbay.cli.call_numbers import CallNumbers
from patchbay.cli.times import clock, counted, span
from patchbay.legible import one_line, printable

_TEXT: Final = 100
_ARGUMENTS: Final = 100
_LABEL: Final = 8

_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_MARKS: Final = {
    "begin": "\u25b6",
    "end": "\u25a0",
    "call": "\u2192",
    "ok": "\u2713",
    "bad": "\u2717",
    "note": "\u00b7",
    "wait": "?",
    "user": "\u00bb",
}
_PLAIN: Final = {"begin": ">>", "end": "==", "call": "->", "ok": "ok", "bad": "!!", "note": "-", "wait": "?", "user": ">"}

_SAID_BY_THE_TURN: Final = frozenset({"agent.subturn.spawn", "agent.subturn.end"})

_Payload = Mapping[str, Any]


class Trace:
    """Makes lines of events. ``plain_marks``: the terminal knows ASCII only."""

    def __init__(self, *, in_colour: bool, plain_marks: bool) -> None:
        self._in_colour = in_colour
        self._marks = _PLAIN if plain_marks else _MARKS
        self._is_plain = plain_marks
        self._calls = CallNumbers()
        self._shown: Mapping[str, Callable[[dict[str, Any], _Payload], Iterator[str]]] = {
            "agent.turn.start": self._turn_start,
            "agent.turn.end": self._turn_end,
            "agent.llm.request": self._request,
            "agent.llm.response": self._response,
            "agent.approval.requested": self._waits,
            "agent.approval.decided": self._waits_no_more,
            "agent.tool.exec_start": self._begun,
            "agent.tool.exec_end": self._ended,
            "agent.tool.exec_skipped": self._skipped,
            "agent.user_output": self._output,
            "agent.error": self._error,
            "stream.dropped": self._dropped,
        }

    def lines(self, event: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of an event, whatever is in it."""
        kind, payload = _words(event.get("kind")), _mapping(event.get("payload"))
        if kind in _SAID_BY_THE_TURN:
            return
        show = self._shown.get(kind, self._other)
        scope = _mapping(event.get("scope"))
        when = self._colour("dim", _time(event.get("time")))
        label = self._colour("dim", _said(_words(scope.get("turn_id"))[-_LABEL:]).ljust(_LABEL))
        for line in show(event, payload):
            yield self._fit(f"{when} {label} {line}".rstrip())
        if kind == "agent.turn.end":
            self._calls.forget(_words(scope.get("turn_id")))

    def _turn_start(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        scope = _mapping(event.get("scope"))
        sender = "@".join(_said(scope[name]) for name in ("sender_id", "channel") if scope.get(name))
        about = [sender] if sender else []
        about += [
            f"{name} {_said(scope[key])}" for name, key in (("agent", "agent_id"), ("session", "session_key")) if scope.get(key)
        ]
        parent = _mapping(event.get("correlation")).get("parent_turn_id")
        if parent:
            about.append(f"for {_said(_words(parent)[-_LABEL:])}")
        files = _number(payload.get("MediaCount"))
        message = _quoted(payload.get("UserMessage"))
        more = f" and {counted(files, 'file')}" if files else ""
        yield f"{self._mark('begin', 'bold')} {', '.join(about) or 'a turn'}: {message}{more}"

    def _turn_end(self, _event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        status = _said(payload.get("Status") or "ended")
        colour = "bold" if status == "completed" else "red"
        rounds = counted(_number(payload.get("Iterations")), "round")
        content = payload.get("FinalContent")
        answer = f": {_quoted(content)}" if content else ""
        yield f"{self._mark('end', colour)} {self._colour(colour, status)} in {_duration(payload)}, {rounds}{answer}"

    def _request(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        number = _number(_mapping(event.get("attrs")).get("iteration"))
        messages, tools = _number(payload.get("MessagesCount")), _number(payload.get("ToolsCount"))
        model = _said(payload.get("Model") or "the model")
        yield f"  {self._mark('note', 'dim')} round {number}: {model}, {counted(messages, 'message')}, {counted(tools, 'tool')}"

    def _response(self, _event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        length, calls = _number(payload.get("ContentLen")), _number(payload.get("ToolCalls"))
        said = [counted(length, "character")] if length or not calls else []
        said += [counted(calls, "call")] if calls else []
        said += ["reasoning"] if payload.get("HasReasoning") else []
        yield f"  {self._mark('note', 'dim')} answered: {', '.join(said)}"

    def _waits(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        who = payload.get("Who")
        by = f", to be decided by {_said(' or '.join(map(_words, who)))}" if isinstance(who, list) and who else ""
        words = f"waits for approval {_said(payload.get('ID'))}"
        arguments = _arguments(payload.get("Arguments"))
        yield f"  {self._mark('wait', 'yellow')} {self._call(event)}({arguments}): {self._colour('yellow', words)}{by}"

    def _waits_no_more(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        decision = _said(payload.get("Decision") or "decided")
        for_session = " for the session" if payload.get("ForSession") and decision == "approved" else ""
        by = f" by {_said(payload['By'])}" if payload.get("By") else ""
        reason = f": {_short(payload['Reason'], _TEXT)}" if payload.get("Reason") else ""
        colour = "green" if decision == "approved" else "red"
        words = self._colour(colour, f"{decision}{for_session}{by}")
        yield f"    {self._mark('note', 'yellow')} {self._call(event)}: {words} ({_said(payload.get('ID'))}){reason}"

    def _begun(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        yield f"  {self._mark('call', 'cyan')} {self._call(event)}({_arguments(payload.get('Arguments'))})"

    def _ended(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        is_error = bool(payload.get("IsError"))
        about = ["failed"] if is_error else []
        about += [counted(_number(payload.get("ForLLMLen")), "character")]
        if for_user := _number(payload.get("ForUserLen")):
            about.append(f"{for_user:,} for the user")
        about.append(_duration(payload))
        if payload.get("Async"):
            about.append("goes on")
        mark = self._mark("bad", "red") if is_error else self._mark("ok", "green")
        yield f"    {mark} {self._call(event)}: {', '.join(about)}"
        yield from self._decided(event)

    def _skipped(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        reason = _short(payload.get("Reason"), 2 * _TEXT) or "given up"
        yield f"    {self._mark('bad', 'red')} {self._call(event)}: {self._colour('red', reason)}"
        yield from self._decided(event)

    def _call(self, event: dict[str, Any]) -> str:
        """Return the name of a call's tool, and from the second call of it in a turn on which one it is."""
        tool = _words(_mapping(event.get("payload")).get("Tool"))
        attrs = _mapping(event.get("attrs"))
        call = (_number(attrs.get("iteration")), _words(attrs.get("call_id")))
        number = self._calls.of(_words(_mapping(event.get("scope")).get("turn_id")), tool, call) if call[1] else 1
        return _said(tool) if number == 1 else f"{_said(tool)} #{number}"

    def _decided(self, event: dict[str, Any]) -> Iterator[str]:
        decisions = _mapping(event.get("attrs")).get("decisions")
        for each in decisions if isinstance(decisions, list) else ():
            told = _mapping(each)
            what = _short(told.get("decision"), _TEXT)
            yield f"      {self._mark('note', 'yellow')} {_said(told.get('by'))} ({_said(told.get('point'))}): {what}"

    def _output(self, _event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        media = payload.get("Media")
        files = [_said(each) for each in media] if isinstance(media, list) else []
        said = ([_quoted(payload["Text"])] if payload.get("Text") else []) + files
        yield f"    {self._mark('user', 'bold')} to the user, from {_said(payload.get('Tool'))}: {', '.join(said)}"

    def _error(self, _event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        message = _short(payload.get("Message"), 2 * _TEXT)
        words = f"{_said(payload.get('Stage'))}: {message}"
        yield f"  {self._mark('bad', 'red')} {self._colour('red', words)}"

    def _dropped(self, _event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        many = _number(payload.get("count"))
        yield self._colour("yellow", f"({counted(many, 'event')} missing here: they came too fast)")

    def _other(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        yield f"  {self._mark('note', 'dim')} {_said(event.get('kind'))} {_short(json.dumps(payload), _TEXT)}"

    def _mark(self, name: str, colour: str) -> str:
        return self._colour(colour, self._marks[name])

    def _colour(self, name: str, text: str) -> str:
        return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if self._in_colour and text else text

    def _fit(self, line: str) -> str:
        return line.encode("ascii", "backslashreplace").decode() if self._is_plain else line


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _words(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _said(value: Any) -> str:
    return _short(value, _TEXT)


def _short(value: Any, most: int) -> str:
    """Return a value on one line, cut where it is long."""
    return printable(one_line(_words(value), most))


def _quoted(value: Any) -> str:
    return f'"{_short(value, _TEXT)}"'


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _duration(payload: _Payload) -> str:
    return span(_number(payload.get("Duration")) / 1e9)


def _arguments(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    written = (f"{_said(name)}={json.dumps(each, ensure_ascii=False)[:_ARGUMENTS]}" for name, each in list(value.items())[:20])
    return _short(", ".join(written), _ARGUMENTS)


def _time(value: Any) -> str:
    try:
        return clock(datetime.fromisoformat(f"{_words(value)[:26].rstrip('Z')}Z").timestamp())
    except (ValueError, OverflowError, OSError):
        return "-" * 12
