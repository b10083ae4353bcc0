"""Turns as JSON for the console: decoded, read again and explained when they are asked for, without secrets."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from patchbay.approvals import ApprovalRequest
from patchbay.approvals.request import State
from patchbay.approvals.service import DECIDED, REQUESTED
from patchbay.errors import PatchbayError
from patchbay.formats.catalog import FORMATS
from patchbay.formats.events import CallEnd, CallStart
from patchbay.formats.parser import StreamParser
from patchbay.hooks import Event, Meta
from patchbay.hooks.events import CallRecord
from patchbay.hooks.process.protocol import encode_event
from patchbay.models.attempt import Attempt, Call, Counts, counts_of
from patchbay.models.choice import make_parser
from patchbay.models.parts import reasoning_of
from patchbay.models.request import ChatCompletionBody, format_name
from patchbay.models.wire import SseDecoder, decode, objects
from patchbay.server.turns import MAX_PASSED, Turn, record_of
from patchbay.transcript import text_of
from patchbay.types import Reply

PREVIEW_CHARS: Final = 160
MAX_LOCATED: Final = 100_000
"""Maximum characters of a text in which the places of calls are looked for: it is read character by character."""

Json = dict[str, Any]


@dataclass(frozen=True)
class TurnQuery:
    """Which turns are wanted; "" for any. ``text`` is looked for in requests and answers, in any case."""

    session: str = ""
    model: str = ""
    tool: str = ""
    outcome: str = ""
    text: str = ""

    def fits(self, turn: Turn) -> bool:
        """Return whether a turn is wanted."""
        return (
            (not self.outcome or self.outcome == state_of(turn))
            and (not self.session or self.session == turn.session)
            and (not self.model or self.model == turn.model)
            and (not self.tool or self.tool in record_of(turn).calls)
            and (not self.text or _contains(turn, self.text))
        )


def state_of(turn: Turn) -> str:
    """Return "running", "done" or "failed"."""
    if not turn.ended:
        return "running"
    return "failed" if turn.error or turn.status >= 400 else "done"


def summary_of(turn: Turn) -> Json:
    """Return what a list shows of a turn, with secrets."""
    record = record_of(turn)
    if turn.preview is None:
        turn.preview = _preview(_object(turn.body).get("messages"))
    is_over = turn.ended > 0
    return {
        "id": turn.id,
        "state": state_of(turn),
        "began": turn.began,
        "seconds": record.seconds if is_over else None,
        "protocol": turn.protocol,
        "model": record.model,
        "role": record.agent,
        "session": record.session,
        "mode": record.mode,
        "format": record.format,
        "constraint": record.constraint,
        "stream": record.stream,
        "tools": record.tools,
        "calls": list(record.calls),
        "rounds": record.rounds,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "cached_tokens": record.cached_tokens,
        "status": record.status if is_over else None,
        "error": record.error,
        "reasons": list(record.reasons),
        "preview": turn.preview,
    }


def detail_of(turn: Turn, approvals: Sequence[ApprovalRequest] = (), *, whole: bool = False) -> Json:
    """Return all of a turn, with secrets; ``whole``: with what each attempt was sent and answered.

    ``approvals`` are the requests for approval of its calls.
    """
    shown = [_attempt(turn, index) | (attempt_detail(turn, index) if whole else {}) for index in range(len(turn.attempts))]
    return {
        **summary_of(turn),
        "client_request": _object(turn.body) or None,
        "cut": turn.body is None,
        "attempts": shown,
        "hooks": [msgspec.structs.asdict(record) for record in list(turn.hooks or ())],
        "events": [encode_event(event) for event in _events(turn, approvals)],
    }


def without_content(view: Json) -> Json:
    """Return a summary or the detail of a turn without what was said: messages, texts, and arguments."""
    cut: Json = {**view, "preview": ""}
    if "attempts" in view:
        nothing: Json = {"request": None, "cut": True, "text": None, "native_calls": [], "reading": None}
        cut |= {"client_request": None, "cut": True}
        cut["attempts"] = [
            {**each, **nothing, "calls": [{**call, "arguments": ""} for call in each["calls"]]} for each in view["attempts"]
        ]
        for event in cut["events"]:
            event["payload"].pop("Arguments", None)
    return cut


def _events(turn: Turn, approvals: Sequence[ApprovalRequest]) -> list[Event]:
    """Return the events of a turn's tools and approvals, in the order of time."""
    arguments = {call_id: text for attempt in turn.attempts for call_id, _, text in attempt.calls}
    events = [event for call in list(turn.settled or ()) for event in _call_events(call, arguments.get(call.call_id, ""))]
    meta = Meta(agent_id=turn.agent, turn_id=turn.id, session_key=turn.session)
    return sorted([*events, *_approval_events(meta, approvals)], key=lambda event: event.time)


def with_approvals(detail: Json, approvals: Sequence[ApprovalRequest]) -> Json:
    """Return an archived turn with the events of its requests for approval."""
    meta = Meta(agent_id=detail["role"], turn_id=detail["id"], session_key=detail["session"])
    events = [*detail["events"], *map(encode_event, _approval_events(meta, approvals))]
    return {**detail, "events": sorted(events, key=lambda event: str(event["time"]))}


def _approval_events(meta: Meta, approvals: Sequence[ApprovalRequest]) -> list[Event]:
    events: list[Event] = []
    for request in approvals:
        attrs, about = {"call_id": request.call_id}, {"ID": request.id, "Tool": request.tool}
        asked = about | {"Rule": request.rule, "Who": list(request.who), "Deadline": request.deadline}
        events.append(Event(f"asked-{request.id}", REQUESTED, request.created, meta, {}, "info", asked, attrs))
        if request.decided is not None:
            said = about | {"Decision": str(request.state), "By": request.by, "Reason": request.reason}
            severity = "info" if request.state is State.APPROVED else "warn"
            events.append(Event(f"decided-{request.id}", DECIDED, request.decided, meta, {}, severity, said, attrs))
    return events


def _call_events(call: CallRecord, arguments: str) -> list[Event]:
    """Return the events of a settled call: that its tool began and ended, or was skipped."""
    attrs: Json = {"call_id": call.call_id}
    if call.responded_by:
        attrs["responded_by"] = call.responded_by
    ended = dict(attrs)
    if call.decisions:
        ended["decisions"] = [{"by": by, "point": point, "decision": decision} for by, point, decision in call.decisions]
    severity = "warn" if call.is_error else "info"
    if call.is_error and not call.seconds:
        why = {"Tool": call.tool, "Reason": call.code}
        return [Event(f"skip-{call.call_id}", "agent.tool.exec_skipped", call.time, call.meta, {}, severity, why, ended)]
    begun = {"Tool": call.tool, "Arguments": _object(arguments.encode("utf-8", "surrogatepass"))}
    payload = {
        "Tool": call.tool, "Duration": round(call.seconds * 1e9), "ForLLMLen": call.result_chars, "IsError": call.is_error,
        "Code": call.code,
    }  # fmt: skip
    began = call.time - call.seconds
    return [
        Event(f"begin-{call.call_id}", "agent.tool.exec_start", began, call.meta, {}, "info", begun, attrs),
        Event(f"end-{call.call_id}", "agent.tool.exec_end", call.time, call.meta, {}, severity, payload, ended),
    ]


def attempt_detail(turn: Turn, index: int) -> Json:
    """Return what an attempt was sent and answered, and how that was read, with secrets. Raises IndexError."""
    attempt = turn.attempts[index]
    answer = _answer(turn, attempt)
    reading = _read_again(attempt, answer)
    read = {(call["name"], call["arguments"]) for call in reading["calls"]} if reading is not None else set()
    native = [call for call in answer.calls if call[1:] not in read]
    return {
        "request": _object(attempt.body) or None,
        "cut": attempt.is_cut or answer.is_cut,
        "text": answer.text,
        "native_calls": [_call(call) for call in native],
        "reading": reading,
    }


def encoded_for(turn: Turn, view: Json) -> bytes:
    """Encode a view of a turn as JSON, without secrets."""
    return turn.redact(json.dumps(view, default=str).encode())  # ASCII: texts may have lone surrogates


# what was asked and answered


@dataclass(frozen=True)
class _Answer:
    """An answer of the model's server: its text, its calls, and the reasoning that was sent apart."""

    text: str | None = None
    calls: Sequence[Call] = ()
    reasoning: str = ""
    counts: Counts = (None, None, None)
    is_cut: bool = False
    is_passed: bool = False


def _answer(turn: Turn, attempt: Attempt) -> _Answer:
    if (reader := attempt.reader) is not None and reader.choices:  # it runs: what has come so far
        choice = reader.choices[min(reader.choices)]
        text, reasoning = "".join(choice.raw_text), "".join(choice.raw_reasoning)
        calls = [(call.id, call.name, call.raw_arguments) for call in list(choice.calls)]
        return _Answer(text, calls, reasoning, counts_of(reader.usage))
    if not turn.passed or attempt is not turn.attempts[-1]:
        return _Answer(attempt.text, attempt.calls, attempt.reasoning, attempt.counts)
    read = _read_passed(_decompressed(b"".join(turn.passed), turn.coding))
    record = record_of(turn)
    counts = record.prompt_tokens, record.completion_tokens, record.cached_tokens
    return _Answer(read.text, read.calls, read.reasoning, counts, turn.is_passed_cut, is_passed=True)


def _decompressed(body: bytes, coding: str) -> bytes:
    for window in {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}.get(coding, ()):
        try:
            return zlib.decompressobj(window).decompress(body, 8 * MAX_PASSED)
        except zlib.error:
            continue
    return body if not coding else b""


def _read_passed(body: bytes) -> _Answer:
    """Read an answer that was passed on: a document or a stream, which may be cut."""
    if body.lstrip()[:1] == b"{":
        events: Iterable[bytes] = [body]
    else:
        decoder = SseDecoder()
        events = [*decoder.feed(body), *decoder.close()]
    text: list[str] = []
    reasoning: list[str] = []
    calls: dict[Any, list[str]] = {}
    usage: Any = None
    for event in events:
        chunk = _object(event)
        usage = chunk.get("usage") or usage
        choice = next((each for each in objects(chunk.get("choices")) if each.get("index", 0) == 0), {})
        message = choice.get("delta") or choice.get("message")
        if not isinstance(message, dict):
            continue
        text.append(_text(message.get("content")))
        reasoning.append(reasoning_of(message))
        for place, call in enumerate(objects(message.get("tool_calls"))):
            function: Json = call["function"] if isinstance(call.get("function"), dict) else {}
            parts = calls.setdefault(call.get("index", place), ["", "", ""])
            parts[0] = parts[0] or _text(call.get("id"))
            parts[1] = parts[1] or _text(function.get("name"))
            parts[2] += _text(function.get("arguments"))
    return _Answer(
        "".join(text), [(parts[0], parts[1], parts[2]) for parts in calls.values()], "".join(reasoning), counts_of(usage)
    )


def _attempt(turn: Turn, index: int) -> Json:
    attempt = turn.attempts[index]
    answer = _answer(turn, attempt)
    ended = attempt.ended
    if not ended:
        ended = turn.attempts[index + 1].began if index + 1 < len(turn.attempts) else turn.ended
    return {
        "index": index,
        "purpose": attempt.purpose,
        "began": attempt.began,
        "first_seconds": attempt.first - attempt.began if attempt.first else None,
        "seconds": ended - attempt.began if ended else None,
        "status": attempt.status or None,
        "mode": attempt.mode,
        "format": _format_name(attempt),
        "constraint": attempt.constraint if attempt.mode == "text" else "",
        "reason": attempt.reason,
        "usage": dict(zip(("prompt_tokens", "completion_tokens", "cached_tokens"), answer.counts, strict=True)),
        "calls": [_call(call) for call in answer.calls],
    }


# how a text was read


def _request_of(attempt: Attempt) -> ChatCompletionBody | None:
    """Return the request that an attempt was made of; None if it is not kept, or was passed on as it is."""
    if attempt.source is None or attempt.options is None:
        return None
    try:
        return ChatCompletionBody(attempt.source, attempt.options, is_translated=True)
    except PatchbayError:
        return None


def _format_name(attempt: Attempt) -> str:
    request = _request_of(attempt) if attempt.mode == "text" else None
    return format_name(request.options, request.model) if request is not None else ""


def _read_again(attempt: Attempt, answer: _Answer) -> Json | None:
    """Read the model's text once more, with the places of its calls; None without a text."""
    if answer.text is None:
        return None
    if answer.is_passed:
        return _reading(Reply(answer.text or None, answer.reasoning or None), answer, [])
    request = _request_of(attempt)
    if request is None or request.request_tools is None or attempt.options is None:
        return None
    rules, options = request.request_tools.rules, attempt.options

    def new_parser() -> StreamParser:
        return make_parser(rules, options, prefilled=attempt.prefilled, begins_json=attempt.begins_json)

    parser = new_parser()
    if not attempt.is_whole:
        parser.feed(answer.text)
        parser.close()
    else:
        parser.close(answer.text)
    reply = parser.reply
    places = _places(new_parser(), answer.text) if reply.tool_calls and len(answer.text) <= MAX_LOCATED else []
    named = format_name(request.options, request.model) if attempt.mode == "text" else ""
    return _reading(reply, answer, places if len(places) == len(reply.tool_calls) else [], named)


def _reading(reply: Reply, answer: _Answer, places: Sequence[tuple[int, int]], named: str = "") -> Json:
    text, known = answer.text or "", list(answer.calls)
    calls: list[Json] = []
    for at, call in enumerate(reply.tool_calls):
        own = next((each for each in known if each[1:] == (call.name, call.raw_arguments)), None)
        if own is not None:
            known.remove(own)
        begin, end = places[at] if places else (None, None)
        calls.append({
            "id": own[0] if own is not None else "",
            "name": call.name,
            "arguments": call.raw_arguments,
            "text": None if begin is None else text[begin:end],
            "begin": None if begin is None else _utf16(text[:begin]),
            "end": None if end is None else _utf16(text[:end]),
        })  # fmt: skip
    first = calls[0]["text"] if calls else ""
    return {
        "format": _found_format(first or text, named) if calls else "",
        "content": reply.content,
        "reasoning": "\n\n".join(filter(None, (answer.reasoning if not answer.is_passed else "", reply.reasoning))) or None,
        "calls": calls,
        "incomplete": [asdict(call) for call in reply.incomplete],
        "repairs": [f"{repair.kind}, at {_line_and_column(text, repair.position)}" for repair in reply.repairs],
    }


def _places(parser: StreamParser, text: str) -> list[tuple[int, int]]:
    """Return where each call of a text begins and ends: from the end of the prose before it to where it is complete."""
    places: list[tuple[int, int]] = []
    prose_end = last = 0
    is_open = False
    for at, char in enumerate(text):
        if parser.in_prose:
            prose_end = at
            if is_open and places:  # a closing marker belongs to the last call
                places[-1] = places[-1][0], at
                is_open = False
        for event in parser.feed(char):
            if isinstance(event, CallStart):
                is_open = False
            elif isinstance(event, CallEnd):
                begin = last if prose_end < last < at + 1 else prose_end
                places.append((begin, at + 1))
                last, is_open = at + 1, True
    for event in parser.close():
        if isinstance(event, CallEnd):
            places.append((last if prose_end < last < len(text) else prose_end, len(text)))
            is_open = False
    if is_open and places:
        places[-1] = places[-1][0], len(text)
    return [_stripped(text, begin, end) for begin, end in places]


def _stripped(text: str, begin: int, end: int) -> tuple[int, int]:
    part = text[begin:end]
    return begin + len(part) - len(part.lstrip()), begin + len(part.rstrip())


def _found_format(text: str, named: str) -> str:
    """Return the format whose opening marker a call's text begins with: ``named`` if it is one of them, "" if none is."""
    begin = text.lstrip()
    openers = {
        row.name: [opener for wrapper in row.wrappers for opener in wrapper.openers]
        + [start for channel in row.channels for start in channel.starts]
        for row in FORMATS.values()
    }
    found = {name: max((len(each) for each in given if begin.startswith(each)), default=0) for name, given in openers.items()}
    longest = max(found.values(), default=0)
    if longest == 0:
        return "fenced" if begin.startswith(("```", "~~~")) else named
    names = [name for name, length in found.items() if length == longest]
    return named if named in names else names[0]


# JSON


def _object(body: bytes | None) -> Json:
    """Decode a JSON object; empty for anything else."""
    try:
        value = decode(body) if body is not None else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _call(call: Call) -> Json:
    return dict(zip(("id", "name", "arguments"), call, strict=True))


def _preview(messages: Any) -> str:
    """Return the beginning of the user's last message."""
    for message in reversed(objects(messages)):
        if message.get("role") == "user":
            content = message.get("content")
            text = content if isinstance(content, str) else text_of(content) if isinstance(content, list) else ""
            return " ".join(text[: 4 * PREVIEW_CHARS].split())[:PREVIEW_CHARS]
    return ""


def _utf16(text: str) -> int:
    """Return the length as JavaScript counts it."""
    return len(text) + sum(char > "\uffff" for char in text)


def _line_and_column(text: str, position: int) -> str:
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"


def _contains(turn: Turn, text: str) -> bool:
    """Return whether a turn has a text, in any case; what is redacted is not found."""
    wanted = text.lower()
    forms = {wanted, json.dumps(wanted)[1:-1]}
    attempts = turn.attempts
    last = attempts[-1].body if attempts and attempts[-1].body is not turn.body else None
    pieces = [each.decode("utf-8", "replace") for each in (turn.body, b"".join(turn.passed or ()), last) if each]
    pieces += [each for attempt in attempts for each in (attempt.text, attempt.reasoning, attempt.reason) if each]
    pieces += [text for attempt in attempts for _, _, text in attempt.calls]
    pieces += [turn.error, turn.model]

    def found(piece: str) -> bool:
        piece = piece.lower()
        return any(form in piece for form in forms)

    return any(found(turn.redact.text(piece)) for piece in pieces if found(piece))
