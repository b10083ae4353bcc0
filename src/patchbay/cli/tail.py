"""``patchbay tail``: follow a server's turns and tool calls."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, TypeAlias

import typer

from patchbay._backoff import Backoff
from patchbay._text import one_line, plural, printable
from patchbay.cli.http import Events, ServerClient, ServerRefusedError, ServerUnavailableError
from patchbay.cli.options import SERVER, Server, TokenFile
from patchbay.cli.request_lines import describe_request, format_tokens
from patchbay.cli.terminal import exit_when_stdout_closes, format_clock, format_duration, supports_colour
from patchbay.errors import ConfigurationError

_FIRST_DELAY: Final = 0.25
_LONGEST_DELAY: Final = 10.0
_MISSING: Final = "This is no patchbay serve and no patchbay proxy: it has no events."
_PROXY_URL: Final = " (http://127.0.0.1:8787 for a proxy with the default port)"
_DROPPED: Final = "stream.dropped"  # an event of the stream itself, in no turn
_REQUEST: Final = "server.request"  # of each request to a model, also without a turn


def tail(
    server: Server = SERVER,
    token_file: TokenFile = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only events of this kind, such as agent.turn.end or 'agent.tool.*'; repeatable."),
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="KEY", help="Only events of this session.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Follow a server's turns: user, rounds, tool calls, decisions and results; and its requests to models. Ctrl-C ends.

    A proxy without --config has no turns: it shows one line per request.

    [bold]Examples[/bold]

      patchbay tail

      patchbay tail --server http://127.0.0.1:8787

      patchbay tail --session s1

      patchbay tail --kind 'agent.tool.*' --json
    """  # fmt: skip
    _check_kinds(kind or ())
    parameters = [("kind", each) for each in kind or ()] + ([("session", session)] if session is not None else [])
    client = ServerClient(server, token_file)
    trace = None if as_json else Trace(colour=supports_colour(sys.stdout), ascii_only=not _can_encode("\u2192\u2713\u00b7"))
    exit_when_stdout_closes()
    for event in _follow(client, parameters):
        for line in [json.dumps(event)] if trace is None else trace.lines(event):
            print(line)
        sys.stdout.flush()


def _follow(client: ServerClient, parameters: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield a server's events; reconnect with backoff when the stream ends. Raises if the server is unreachable at first."""
    last_id = ""

    def connect() -> Events:
        return client.events("/api/events", parameters, last_id=last_id, missing=_MISSING)

    try:
        stream = connect()
    except ServerUnavailableError as error:
        if error.hint:
            error.hint += _PROXY_URL
        raise
    print(f"Tailing {client.url}; Ctrl-C ends.", file=sys.stderr)
    while True:
        reason = f"{client.url} ended the stream"
        try:
            with contextlib.closing(stream):
                for event in stream:
                    last_id = stream.last_id or last_id
                    yield event
        except ServerUnavailableError as error:
            reason = str(error)
        print(f"{reason}; reconnecting", file=sys.stderr)
        stream = _reconnect(connect)
        print("Reconnected.", file=sys.stderr)


def _reconnect(connect: Callable[[], Events]) -> Events:
    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
    while True:
        time.sleep(backoff.fail())
        try:
            return connect()
        except ServerUnavailableError:
            continue
        except ServerRefusedError as error:
            if not error.is_transient:
                raise


def _check_kinds(patterns: Sequence[str]) -> None:
    """Raise ConfigurationError for a pattern that matches no kind of event."""
    from patchbay.hooks.process.protocol import KINDS

    known = KINDS | {_DROPPED, _REQUEST}
    for each in patterns:
        if not any(fnmatchcase(kind, each) for kind in known):
            ours = ", ".join(sorted(kind for kind in known if kind.startswith("agent.")))
            raise ConfigurationError(f"--kind {each!r} matches no event kind: use one of {ours}, or a pattern: 'agent.tool.*'.")


def _can_encode(marks: str) -> bool:
    try:
        marks.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


TURNS: Final = 200
"""Most recent turns that are remembered: the end of a turn may be lost."""
CALLS: Final = 1000
"""Calls of a turn that are remembered; later ones count as the first."""

Call: TypeAlias = tuple[int, str]
"""Round and call id, which a model may reuse in the next round."""


class CallNumbers:
    """Numbers the calls of each tool in a turn from 1, so that concurrent calls can be told apart. Bounded."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, dict[tuple[str, Call], int]] = OrderedDict()

    def of(self, turn: str, tool: str, call: Call) -> int:
        """Return a call's number."""
        if not turn:
            return 1
        numbers = self._turns.setdefault(turn, {})
        self._turns.move_to_end(turn)
        if len(self._turns) > TURNS:
            self._turns.popitem(last=False)
        if (tool, call) not in numbers:
            if len(numbers) >= CALLS:
                return 1
            numbers[tool, call] = 1 + sum(each == tool for each, _ in numbers)
        return numbers[tool, call]

    def forget(self, turn: str) -> None:
        """Drop a turn that ended."""
        self._turns.pop(turn, None)


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

_REDUNDANT: Final = frozenset({"agent.subturn.spawn", "agent.subturn.end"})

_Payload = Mapping[str, Any]


class Trace:
    """Formats events as lines. ``ascii_only``: for terminals without Unicode.

    Text of users, models and tools is escaped: no control character reaches the terminal.
    """

    def __init__(self, *, colour: bool, ascii_only: bool) -> None:
        self._has_colour = colour
        self._marks = _PLAIN if ascii_only else _MARKS
        self._ascii_only = ascii_only
        self._calls = CallNumbers()
        self._formatters: Mapping[str, Callable[[dict[str, Any], _Payload], Iterator[str]]] = {
            "agent.turn.start": self._turn_start,
            "agent.turn.end": self._turn_end,
            "agent.llm.request": self._request,
            "agent.llm.response": self._response,
            "agent.approval.requested": self._approval_requested,
            "agent.approval.decided": self._approval_decided,
            "agent.tool.exec_start": self._call_started,
            "agent.tool.exec_end": self._call_ended,
            "agent.tool.exec_skipped": self._call_skipped,
            "agent.user_output": self._user_output,
            "agent.error": self._error,
            "stream.dropped": self._dropped,
            _REQUEST: self._finished_request,
        }

    def lines(self, event: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of an event. Never raises on its content."""
        kind, payload = _string(event.get("kind")), _mapping(event.get("payload"))
        if kind in _REDUNDANT:
            return
        show = self._formatters.get(kind, self._other)
        scope = _mapping(event.get("scope"))
        when = self._colour("dim", _time(event.get("time")))
        label = self._colour("dim", _text(_string(scope.get("turn_id"))[-_LABEL:]).ljust(_LABEL))
        for line in show(event, payload):
            yield self._fit(f"{when} {label} {line}".rstrip())
        if kind == "agent.turn.end":
            self._calls.forget(_string(scope.get("turn_id")))

    def _turn_start(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        scope = _mapping(event.get("scope"))
        sender = "@".join(_text(scope[name]) for name in ("sender_id", "channel") if scope.get(name))
        about = [sender] if sender else []
        about += [
            f"{name} {_text(scope[key])}" for name, key in (("agent", "agent_id"), ("session", "session_key")) if scope.get(key)
        ]
        parent = _mapping(event.get("correlation")).get("parent_turn_id")
        if parent:
            about.append(f"for {_text(_string(parent)[-_LABEL:])}")
        files = _number(payload.get("MediaCount"))
        message = _quoted(payload.get("UserMessage"))
        more = f" and {plural(files, 'file')}" if files else ""
        yield f"{self._mark('begin', 'bold')} {', '.join(about) or 'a turn'}: {message}{more}"

    def _turn_end(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        status = _text(payload.get("Status") or "ended")
        colour = "bold" if status == "completed" else "red"
        rounds = plural(_number(payload.get("Iterations")), "round")
        content = payload.get("FinalContent")
        answer = f": {_quoted(content)}" if content else ""
        tokens = "".join(f", {each}" for each in _tokens(event))
        yield f"{self._mark('end', colour)} {self._colour(colour, status)} in {_duration(payload)}, {rounds}{tokens}{answer}"

    def _request(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        number = _number(_mapping(event.get("attrs")).get("iteration"))
        messages, tools = _number(payload.get("MessagesCount")), _number(payload.get("ToolsCount"))
        model = _text(payload.get("Model") or "the model")
        yield f"  {self._mark('note', 'dim')} round {number}: {model}, {plural(messages, 'message')}, {plural(tools, 'tool')}"

    def _finished_request(self, _event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        yield " ".join(self._colour(style, text) if style else text for text, style in describe_request(payload, verbose=True))

    def _response(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        length, calls = _number(payload.get("ContentLen")), _number(payload.get("ToolCalls"))
        parts = [plural(length, "character")] if length or not calls else []
        parts += [plural(calls, "call")] if calls else []
        parts += ["reasoning"] if payload.get("HasReasoning") else []
        parts += _tokens(event)
        yield f"  {self._mark('note', 'dim')} answered: {', '.join(parts)}"

    def _approval_requested(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        who = payload.get("Who")
        by = f", to be decided by {_text(' or '.join(map(_string, who)))}" if isinstance(who, list) and who else ""
        words = f"waits for approval {_text(payload.get('ID'))}"
        arguments = _arguments(payload.get("Arguments"))
        yield f"  {self._mark('wait', 'yellow')} {self._call(event)}({arguments}): {self._colour('yellow', words)}{by}"

    def _approval_decided(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        decision = _text(payload.get("Decision") or "decided")
        for_session = " for the session" if payload.get("ForSession") and decision == "approved" else ""
        by = f" by {_text(payload['By'])}" if payload.get("By") else ""
        reason = f": {_short(payload['Reason'], _TEXT)}" if payload.get("Reason") else ""
        colour = "green" if decision == "approved" else "red"
        words = self._colour(colour, f"{decision}{for_session}{by}")
        yield f"    {self._mark('note', 'yellow')} {self._call(event)}: {words} ({_text(payload.get('ID'))}){reason}"

    def _call_started(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        yield f"  {self._mark('call', 'cyan')} {self._call(event)}({_arguments(payload.get('Arguments'))})"

    def _call_ended(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        is_error = bool(payload.get("IsError"))
        about = ["failed"] if is_error else []
        about += [plural(_number(payload.get("ForLLMLen")), "character")]
        if for_user := _number(payload.get("ForUserLen")):
            about.append(f"{for_user:,} for the user")
        about.append(_duration(payload))
        if payload.get("Async"):
            about.append("goes on")
        mark = self._mark("bad", "red") if is_error else self._mark("ok", "green")
        yield f"    {mark} {self._call(event)}: {', '.join(about)}"
        yield from self._decisions(event)

    def _call_skipped(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        reason = _short(payload.get("Reason"), 2 * _TEXT) or "given up"
        yield f"    {self._mark('bad', 'red')} {self._call(event)}: {self._colour('red', reason)}"
        yield from self._decisions(event)

    def _call(self, event: dict[str, Any]) -> str:
        """Return the tool's name, with a number from its second call in a turn on."""
        tool = _string(_mapping(event.get("payload")).get("Tool"))
        attrs = _mapping(event.get("attrs"))
        call = (_number(attrs.get("iteration")), _string(attrs.get("call_id")))
        number = self._calls.of(_string(_mapping(event.get("scope")).get("turn_id")), tool, call) if call[1] else 1
        return _text(tool) if number == 1 else f"{_text(tool)} #{number}"

    def _decisions(self, event: dict[str, Any]) -> Iterator[str]:
        decisions = _mapping(event.get("attrs")).get("decisions")
        for each in decisions if isinstance(decisions, list) else ():
            entry = _mapping(each)
            what = _short(entry.get("decision"), _TEXT)
            yield f"      {self._mark('note', 'yellow')} {_text(entry.get('by'))} ({_text(entry.get('point'))}): {what}"

    def _user_output(self, _event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        media = payload.get("Media")
        files = [_text(each) for each in media] if isinstance(media, list) else []
        parts = ([_quoted(payload["Text"])] if payload.get("Text") else []) + files
        yield f"    {self._mark('user', 'bold')} to the user, from {_text(payload.get('Tool'))}: {', '.join(parts)}"

    def _error(self, _event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        message = _short(payload.get("Message"), 2 * _TEXT)
        words = f"{_text(payload.get('Stage'))}: {message}"
        yield f"  {self._mark('bad', 'red')} {self._colour('red', words)}"

    def _dropped(self, _event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        many = _number(payload.get("count"))
        yield self._colour("yellow", f"({plural(many, 'event')} missing here: they came too fast)")

    def _other(self, event: dict[str, Any], payload: _Payload) -> Iterator[str]:
        yield f"  {self._mark('note', 'dim')} {_text(event.get('kind'))} {_short(json.dumps(payload), _TEXT)}"

    def _mark(self, name: str, colour: str) -> str:
        return self._colour(colour, self._marks[name])

    def _colour(self, name: str, text: str) -> str:
        return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if self._has_colour and text else text

    def _fit(self, line: str) -> str:
        return line.replace("\u2192", "->").encode("ascii", "backslashreplace").decode() if self._ascii_only else line


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _text(value: Any) -> str:
    return _short(value, _TEXT)


def _short(value: Any, most: int) -> str:
    """Return a value on one line, cut where it is long."""
    return printable(one_line(_string(value), most))


def _quoted(value: Any) -> str:
    return f'"{_short(value, _TEXT)}"'


def _tokens(event: dict[str, Any]) -> list[str]:
    """Return the token counts of an event in words; nothing where it has none."""
    words = format_tokens(_mapping(_mapping(event.get("attrs")).get("usage")))
    return [words] if words else []


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _duration(payload: _Payload) -> str:
    return format_duration(_number(payload.get("Duration")) / 1e9)


def _arguments(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    pairs = (f"{_text(name)}={json.dumps(each, ensure_ascii=False)[:_ARGUMENTS]}" for name, each in list(value.items())[:20])
    return _short(", ".join(pairs), _ARGUMENTS)


def _time(value: Any) -> str:
    try:
        return format_clock(datetime.fromisoformat(f"{_string(value)[:26].rstrip('Z')}Z").timestamp())
    except (ValueError, OverflowError, OSError):
        return "-" * 12
