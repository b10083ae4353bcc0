"""One choice of a streamed answer: parses its text, admits or drops its calls, encodes its parts or holds them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from patchbay.formats.events import CallArguments, CallCut, CallEnd, CallStart, Event, ReasoningDelta, TextDelta, TextWasReasoning
from patchbay.formats.parser import StreamParser
from patchbay.models.completion import finish_reason, is_final
from patchbay.models.encoder import AnswerEncoder
from patchbay.models.policy import Outcome, Policy
from patchbay.models.tool_call_deltas import StreamedCall, ToolCallAccumulator
from patchbay.models.wire import CallDelta, FunctionDelta
from patchbay.types import ToolCall

_NO_FUNCTION = FunctionDelta()


class ChoiceStream:
    """The state of one choice of one attempt.

    ``hold``: write nothing until ``release()``. ``tentative``: the model may be asked again as long as nothing was written, so an
    empty first chunk is not passed on. ``keep``: keep back content, which has to be JSON; "prose": only if it does not begin like
    JSON.
    """

    def __init__(
        self,
        index: int,
        parser: StreamParser,
        policy: Policy,
        encoder: AnswerEncoder,
        send: Callable[[bytes], None],
        *,
        hold: bool,
        tentative: bool,
        keep: Literal["all", "prose"] | None = None,
    ) -> None:
        self.index = index
        self.parser = parser
        self.encoder = encoder
        self.hold = hold
        self.tentative = tentative
        self.visible = False
        """Something of this choice was written."""
        self.kept: list[str] | None = None if keep is None else []
        """Content kept back, to be written at the end unless there are calls."""
        self.refused = False
        """The model gave a refusal."""
        self.done = False
        """The only call that is allowed is complete: the rest is ignored."""
        self.ended = False
        """The upstream sent the finish reason, or its stream is over."""
        self.closed = False
        self.was_reasoning = False
        self._policy = policy
        self._send = send
        self._pending: list[tuple[Callable[..., bytes], tuple[Any, ...]]] = []
        """Parts held back until ``release()``: an encoder's method and its arguments."""
        self._raw_text: list[str] = []
        """The model's text, which may have to be repeated to it."""
        self._passes_json = keep == "prose"
        self._calls: list[ToolCall] = []
        self._native = ToolCallAccumulator()
        self._finish: str | None = None
        self._broken = False
        """There was a call that the policy does not allow."""
        self._has_text = False
        self._cut = False
        self._places = 0
        self._place: int | None = None

    @property
    def has_call(self) -> bool:
        """A call was admitted."""
        return self._places > 0

    @property
    def passes(self) -> bool:
        """Whether chunks may be passed on unchanged: nothing is held back, and the role was sent if it had to wait."""
        return not self.hold and self.kept is None and (self.visible or not self.tentative) and self.encoder.passes_text

    def passed(self) -> None:
        """Note that a chunk of this choice was passed on."""
        if not self.visible:
            self.visible = True
            self.encoder.passed(self.index)

    # text

    def text(self, content: str, *, logprobs: bytes = b"null", passable: bool) -> bool:
        """Feed content. True if its chunk is to be passed on unchanged: all of it is prose that the parser returned at once.

        ``passable``: the chunk may be passed on. If it is not, the parser's events are written here.
        """
        if self.tentative:
            self._raw_text.append(content)
        if not content:
            return passable
        if self.done:
            return False
        events = self.parser.feed(content)
        if len(events) == 1 and passable:
            event = events[0]
            if type(event) is TextDelta and event.text == content:
                self._has_text = True
                return True
        if events:
            self._write_events(events, logprobs)
        elif logprobs != b"null":
            self.write(self.encoder.fields, {}, logprobs)
        return False

    def _write_events(self, events: list[Event], logprobs: bytes = b"null") -> None:
        """Write the parser's events; the first part of text or of a call gets the ``logprobs`` of the chunk."""
        encoder = self.encoder
        for event in events:
            kind = type(event)
            if kind is CallArguments:
                if self._place is not None:
                    self.write(encoder.arguments, self._place, event.text)  # type: ignore[union-attr]
                continue
            if kind is TextDelta:
                if self.done:
                    continue
                self._has_text = True
                text = event.text  # type: ignore[union-attr]
                if self.kept is not None and self._keep_back(text):
                    continue
                self.write(encoder.text, text, logprobs)
            elif kind is ReasoningDelta:
                self.write(encoder.reasoning, event.text, logprobs)  # type: ignore[union-attr]
            elif kind is CallStart:
                self._place = self._admit(event.name)  # type: ignore[union-attr]
                if self._place is None:
                    continue
                self.write(encoder.call, self._place, event.id, event.name, "", None, logprobs)  # type: ignore[union-attr]
            else:
                self._record(event)
                continue
            logprobs = b"null"

    def _record(self, event: Event) -> None:
        """Record an event that writes nothing."""
        if isinstance(event, CallEnd):
            if self._place is not None:
                self._calls.append(event.call)
                self.done = self._policy.single
                self._place = None
        elif isinstance(event, CallCut):
            self._cut = self._cut or self._place is not None or event.index is None
            self._place = None
        elif isinstance(event, TextWasReasoning):
            self.was_reasoning = True

    def _admit(self, name: str) -> int | None:
        """Return the place of a call that begins; None if the client does not get it."""
        if not self._policy.admits(name):
            self._broken = True
            return None
        if self._policy.single and self._places:
            return None
        self._places += 1
        return self._places - 1

    def _keep_back(self, text: str) -> bool:
        """Keep content back. False if it begins like JSON from a server that enforces the format: then none is kept."""
        assert self.kept is not None
        if self._passes_json and (begin := text.lstrip()[:1]):
            self._passes_json = False
            if begin in "{[":
                self.kept = None
                self.tentative = False
                return False
        self.kept.append(text)
        return True

    # writing

    def write(self, encode: Callable[..., bytes], *part: Any) -> None:
        """Write a part of this choice by a method of the encoder, or hold it back."""
        if self.hold:
            self._pending.append((encode, part))
        else:
            self.visible = True
            self._send(encode(self.index, *part))

    def release(self) -> None:
        """Write what was held back, and write at once from now on."""
        self.hold = False
        pending, self._pending = self._pending, []
        for encode, part in pending:
            self.write(encode, *part)

    # calls of the upstream's own

    def native(self, deltas: Sequence[CallDelta], *, passable: bool = False) -> bool:
        """Read native call deltas. True if the chunk is to be passed on unchanged; see ``text``."""
        untouched = passable and self.encoder.passes_calls
        taken: list[tuple[StreamedCall, bool, str, dict[str, Any] | None]] = []
        for delta in deltas:
            function = delta.function or _NO_FUNCTION
            text = function.arguments or ""
            extra = None if delta.extra_content is None else {"extra_content": delta.extra_content}
            call = self._native.add(delta.index, delta.id or "", function.name or "", text, extra)
            begins = not call.written and bool(call.name)  # (clients need the name first)
            if begins:
                self._admit_native(call)
                text, extra = call.arguments, call.extra
                untouched = untouched and call.client_id == delta.id
            untouched = untouched and call.place == delta.index
            taken.append((call, begins, text, extra))
        if not untouched:
            for call, begins, text, extra in taken:
                self._write_native(call, text, extra, begins=begins)
        return untouched

    def _admit_native(self, call: StreamedCall) -> None:
        """Give a call its place and an id that no other call of the answer has."""
        call.place = self._admit(call.name)
        call.written = True
        is_unique = bool(call.id) and all(other is call or other.id != call.id for other in self._native.calls)
        call.client_id = call.id if is_unique else f"call_{self.index}_{len(self._native.calls) - 1}"

    def _write_native(self, call: StreamedCall, text: str, extra: dict[str, Any] | None, *, begins: bool) -> None:
        if call.place is None:
            return
        if begins:
            self.write(self.encoder.call, call.place, call.client_id, call.name, text, extra)
            return
        if text:
            self.write(self.encoder.arguments, call.place, text)
        if extra is not None:
            self.write(self.encoder.fields, {"tool_calls": [{"index": call.place, **extra, "function": {}}]})

    # the end

    def close(self, finish: str | None) -> None:
        """End the choice: write the rest of the parser's text, complete native calls."""
        if self.closed:
            return
        self.closed = self.ended = True
        self._finish = finish
        done = self.done
        events = self.parser.close()
        if not done:
            self._write_events(events)
        for call in self._native.calls:
            if not call.written:
                self._admit_native(call)
                self._write_native(call, call.arguments, call.extra, begins=True)
            if call.place is not None:
                self._calls.append(ToolCall(call.client_id, call.name, call.arguments or "{}", call.extra))
        self.done = self._policy.single and bool(self._calls)

    @property
    def outcome(self) -> Outcome:
        """The outcome of the choice."""
        return Outcome(
            calls=self._calls,
            native=bool(self._native.calls),
            broken=self._broken,
            cut=self._cut,
            visible=self.visible,
            prose=self._has_text,
            text="".join(self._raw_text),
            answer=self.answer,
        )

    @property
    def answer(self) -> str | None:
        """The content that was kept back and has to be JSON."""
        if self.kept is None or is_final(self._finish, self.refused):
            return None
        return self.parser.reply.reasoning if self.answered_unopened else "".join(self.kept)

    @property
    def answered_unopened(self) -> bool:
        """Whether the answer was taken for reasoning: the prompt was expected to open it, and nothing closed it."""
        if not self.parser.prefilled or self._finish == "length":
            return False
        reply = self.parser.reply
        return (
            reply.content is None and bool(reply.reasoning) and not (reply.tool_calls or reply.incomplete or self._native.calls)
        )

    def write_rest(self) -> None:
        """Write what was held or kept back: the answer is accepted."""
        self.release()
        if self.kept:
            if not (self._calls or self._places or self._cut):
                self.write(self.encoder.text, "".join(self.kept))
        elif self.answered_unopened:
            self.write(self.encoder.text, self.parser.reply.reasoning)

    def finish_reason(self) -> str:
        """Return the client's finish reason."""
        return str(finish_reason(self._finish, calls=self._places > 0, native=bool(self._native.calls), cut=self._cut))
