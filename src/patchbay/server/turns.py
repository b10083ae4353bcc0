"""The last requests to models, with their content, for the console: a bounded store in memory.

What a request costs for it is a few references: nothing is decoded, parsed or copied before it is read (``turn_views``). What
stays is nothing that the garbage collector follows: structs without ``gc``, texts, and tuples of those.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final

import msgspec

from patchbay._redaction import Redactor
from patchbay._trace import Trace, begin, exporter
from patchbay.models.attempt import NO_COUNTS, Attempt, Call, Counts, counts_of
from patchbay.models.request import format_name
from patchbay.models.request_record import RequestRecord
from patchbay.server.recent_calls import RecentCalls
from patchbay.server.usage import UsageCounters

if TYPE_CHECKING:  # a plain proxy has no hooks
    from patchbay.hooks.events import CallRecord, HookRecord
    from patchbay.hooks.types import HookScope

MAX_TURNS: Final = 200
MAX_TURN_BYTES: Final = 50 * 1024 * 1024

MAX_PASSED: Final = 1024 * 1024
"""Maximum bytes that are kept of an answer that is passed on as it is."""
MAX_TEXT: Final = 1024 * 1024
"""Maximum characters that are kept of a model's text, and of its reasoning."""
MAX_SETTLED: Final = 1000
"""Maximum settled calls that are kept of a turn."""
MAX_HOOKS: Final = 1000
"""Maximum answers of hooks that are kept of a turn."""

_SHARE: Final = 4
"""A turn may have a quarter of the store; beyond that its content is not kept."""
_TURN, _ATTEMPT, _PIECE, _CALL, _SETTLED, _HOOK = 2000, 700, 80, 300, 1500, 300
"""Bytes of these objects beside their content, as tests/server/test_turn_store.py measures them."""
_WIDE: Final = 4
"""Bytes of a character at most: for short texts, whose size is not worth a call."""
_NO_CONTEXT: Final[Mapping[str, Any]] = {}
_USAGE: Final = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens)": ?([0-9]{1,12})\b')


TurnWatcher = Callable[["Turn"], object]
"""Called with each turn that begins. It must neither block nor raise."""


class Turn(msgspec.Struct, eq=False, gc=False):
    """One request to a model: the ``body`` of its chat completion, and its attempts.

    ``body`` is None where it is larger than a turn's share. ``passed`` are the pieces of an answer that is passed through,
    ``coding`` their compression, ``ending`` its last bytes. ``settled`` are the calls of tools that the server ran, ``hooks`` the
    answers of hooks. ``ended`` is in seconds since 1970, 0.0 while it runs. ``size`` is what all of it takes, in bytes.
    ``redact`` knows the keys of its client. ``trace`` is its span, with telemetry.
    """

    store: TurnStore | None
    id: str
    protocol: str
    body: bytes | None
    redact: Redactor
    began: float
    size: int
    model: str = ""
    stream: bool = False
    agent: str = ""
    session: str = ""
    attempts: tuple[Attempt, ...] = ()
    passed: list[bytes] | None = None
    passed_size: int = 0
    is_passed_cut: bool = False
    coding: str = ""
    ending: bytes = b""
    settled: list[CallRecord] | None = None
    hooks: list[HookRecord] | None = None
    ended: float = 0.0
    seconds: float = 0.0
    status: int = 0
    error: str = ""
    preview: str | None = None
    archive: TurnWatcher | None = None
    """Takes the turn when it has ended."""
    trace: Trace | None = None

    def __repr__(self) -> str:  # without its content
        return f"Turn({self.id!r})"

    @property
    def passed_counts(self) -> Counts:
        """The tokens that stand in the last bytes of an answer that was passed on."""
        usage = self.ending[self.ending.rfind(b'"usage"') :]
        return counts_of({name.decode(): int(count) for name, count in _USAGE.findall(usage)})

    def add_attempt(self, attempt: Attempt) -> None:
        """Keep an attempt that begins; see AttemptLog."""
        self.attempts += (attempt,)
        store, body, source, size = self.store, attempt.body, attempt.source, _ATTEMPT
        if body is not None and body is not self.body:
            size += len(body)
        if source is not None and source is not body and source is not self.body:
            size += len(source)
        if store is None or self.size + size > store.share:
            attempt.drop_content()
            size = _ATTEMPT
        self._grow(size)

    def add_passed(self, piece: bytes) -> None:
        """Keep a piece of an answer that is passed on, up to MAX_PASSED bytes."""
        if self.passed is None:
            self.attempts[-1].first = time.time()
            self.passed = []
        store, size = self.store, len(piece) + _PIECE
        if self.is_passed_cut or store is None or self.size + size > store.share or self.passed_size + size > MAX_PASSED:
            self.is_passed_cut = True
            return
        self.passed.append(piece)
        self.passed_size += size
        self._grow(size)

    def add_settled(self, call: CallRecord) -> None:
        """Keep a settled call of a tool, up to MAX_SETTLED of them."""
        store = self.store
        size = _SETTLED + getsizeof(call.tool) + getsizeof(call.source) + getsizeof(call.call_id) + getsizeof(call.code)
        size += sum(getsizeof(text) for decision in call.decisions for text in decision)
        if self.settled is None:
            self.settled = []
        if store is not None and len(self.settled) < MAX_SETTLED and self.size + size <= store.share:
            self.settled.append(msgspec.structs.replace(call, context=_NO_CONTEXT))
            self._grow(size)

    def add_hook(self, record: HookRecord) -> None:
        """Keep an answer of a hook, up to MAX_HOOKS of them."""
        store = self.store
        size = _HOOK + sum(map(getsizeof, (record.hook, record.reason, record.tool, record.call_id)))
        if self.hooks is None:
            self.hooks = []
        if store is not None and len(self.hooks) < MAX_HOOKS and self.size + size <= store.share:
            self.hooks.append(record)
            self._grow(size)

    def end(self, seconds: float, *, status: int, error: str, ending: bytes | None) -> None:
        """Take the answers from the readers, which are dropped: they refer to this turn."""
        self.ended, self.seconds, self.status, self.error = time.time(), seconds, status, error or self.error
        size = _WIDE * (len(self.error) + len(self.model) + len(self.session))
        if ending:
            self.ending = ending
            size += len(ending)
        store = self.store
        for attempt in self.attempts:
            size += _WIDE * (len(attempt.reason) + len(attempt.unconstrained))
            reader = attempt.reader
            if reader is None:
                continue
            attempt.reader = None
            attempt.counts, attempt.is_whole = counts_of(reader.usage), reader.completion is not None
            choices = reader.choices
            if not choices:
                continue
            choice = choices[min(choices)]
            attempt.repairs = choice.repairs
            text, reasoning = "".join(choice.raw_text), "".join(choice.raw_reasoning)
            calls: tuple[Call, ...] = ()
            if len(text) > MAX_TEXT or len(reasoning) > MAX_TEXT:
                text, reasoning, attempt.is_cut = text[:MAX_TEXT], reasoning[:MAX_TEXT], True
            answered = getsizeof(text) + _WIDE * len(reasoning)
            if choice.calls:
                calls = tuple([(call.id, call.name, call.raw_arguments) for call in choice.calls])
                for _, name, arguments in calls:
                    answered += _CALL + getsizeof(arguments) + _WIDE * len(name)
            if store is None or self.size + size + answered > store.share:
                attempt.drop_content()
            else:
                attempt.text, attempt.reasoning, attempt.calls, attempt.begins_json = text, reasoning, calls, choice.begins_json
                size += answered
        self._grow(size)
        if self.archive is not None:
            self.archive(self)
        if self.trace is not None:
            exporter().add_turn(self)

    def _grow(self, size: int) -> None:
        """Count ``size`` more bytes, as long as the turn is stored."""
        if (store := self.store) is None:
            return
        self.size += size
        store.size += size
        if store.size > store.most_bytes:
            store.trim()


class TurnStore:
    """The last requests to models: at most ``most``, of ``most_bytes`` together; the oldest are dropped first.

    For one event loop. A turn is counted from its begin, as it grows. ``share`` is the most that one may take, in bytes.
    """

    def __init__(self, *, most: int = MAX_TURNS, most_bytes: int = MAX_TURN_BYTES) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.share = most_bytes // _SHARE
        self.size = 0
        """Bytes of all turns."""
        self.watchers: list[TurnWatcher] = []
        self.archive: TurnWatcher | None = None
        """Takes each turn when it has ended, also one that is not stored here any more."""
        self.usage = UsageCounters()
        self.recent_calls = RecentCalls()
        self._turns: OrderedDict[str, Turn] = OrderedDict()  # (the first entry of a dict takes a search)

    def begin(
        self, turn_id: str, protocol: str, body: bytes | None, redact: Redactor, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> Turn:
        """Return a new turn for a chat completion's ``body``; ``headers`` are the request's, which may have its trace."""
        size = _TURN + (sum(map(len, redact.given)) if redact.given else 0)
        if body is not None:
            if size + len(body) <= self.share:
                size += len(body)
            else:
                body = None
        turn = self._turns[turn_id] = Turn(self, turn_id, protocol, body, redact, time.time(), size, archive=self.archive)
        turn.trace = begin(headers)
        self.size += size
        if self.size > self.most_bytes or len(self._turns) > self.most:
            self.trim()
        return turn

    def add_call(self, call: CallRecord) -> None:
        """Count a settled call, and keep it with its turn, if that is stored; a Recorder."""
        self.usage.add_call(call)
        self.recent_calls.add(call)
        turn = self._turns.get(call.meta.turn_id) or self._turns.get(call.meta.parent_turn_id)
        if turn is not None:
            turn.add_settled(call)

    def add_hook(self, scope: HookScope, record: HookRecord) -> None:
        """Keep an answer of a hook with its turn, if that is stored; a HookRecorder."""
        turn = self._turns.get(scope.turn_id) or self._turns.get(scope.parent_turn_id)
        if turn is not None:
            turn.add_hook(record)

    def get(self, turn_id: str) -> Turn | None:
        """Return a turn, None if it is not stored any more."""
        return self._turns.get(turn_id)

    def newest(self) -> list[Turn]:
        """Return all turns, the newest first."""
        return list(reversed(self._turns.values()))

    def trim(self) -> None:
        """Drop the oldest turns beyond the limits; those that run keep nothing from then on."""
        while self.size > self.most_bytes or len(self._turns) > self.most:
            _, oldest = self._turns.popitem(last=False)
            self.size -= oldest.size
            oldest.store = None


def record_of(turn: Turn) -> RequestRecord:
    """Return the record of a turn, as far as it has come."""
    attempts = turn.attempts
    kept = [each for each in attempts if not each.is_superseded] or attempts
    last = kept[-1] if kept else None
    text = last if last is not None and last.mode == "text" else None
    given, written, cached = counts_of_turn(turn)
    return RequestRecord(
        id=turn.id,
        time=turn.ended,
        protocol=turn.protocol,
        model=turn.model,
        agent=turn.agent,
        session=turn.session,
        mode=last.mode if last is not None else "",
        format=format_name(text.options, turn.model) if text is not None and text.options is not None else "",
        constraint=text.constraint if text is not None else "",
        stream=turn.stream,
        tools=max([each.tools for each in attempts], default=0),
        calls=tuple([name for each in kept if each is last or not each.reason for _, name, _ in each.calls]),
        rounds=len(attempts),
        prompt_tokens=given,
        completion_tokens=written,
        cached_tokens=cached,
        seconds=turn.seconds,
        status=turn.status,
        error=turn.error,
        reasons=_reasons(attempts, text),
    )


def counts_of_turn(turn: Turn) -> Counts:
    """Return the tokens of all attempts of a turn."""
    if turn.ending:
        return turn.passed_counts
    return turn.attempts[0].counts if len(turn.attempts) == 1 else _sums(turn.attempts)


def _reasons(attempts: Sequence[Attempt], text: Attempt | None) -> tuple[str, ...]:
    """Return why the model was asked again, and why the tools are in the prompt of the attempt ``text``."""
    reasons = [each.reason for each in attempts if each.reason]
    if text is None or text.options is None:
        return tuple(reasons)
    if not reasons:
        mode, constrain = text.options.tools, text.options.constrain
        why = "tools=text was chosen" if mode == "text" else "constrain=force was chosen" if constrain == "force" else ""
        reasons.append(why or "the model is known to need its tools in the prompt")
    if text.unconstrained:
        reasons.append(f"calls are not constrained: {text.unconstrained}")
    return tuple(reasons)


def _sums(attempts: Sequence[Attempt]) -> Counts:
    """Return the tokens of all attempts; None for each that none has counted."""
    columns = zip(*(each.counts for each in attempts), strict=True) if attempts else (NO_COUNTS,) * 3
    known = [[count for count in column if count is not None] for column in columns]
    given, written, cached = (sum(counts) if counts else None for counts in known)
    return given, written, cached
