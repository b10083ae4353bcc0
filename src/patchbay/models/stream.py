"""A streamed answer: the upstream's events in, the client's events out.

A chunk that needs no change is passed on as the bytes it came in, where the client reads such chunks. The encoder writes all
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from patchbay.errors import UpstreamError
from patchbay.models.choice_stream import ChoiceStream
from patchbay.models.completion import native_calls
from patchbay.models.encoder import NO_HEAD, AnswerEncoder, AnswerHead
from patchbay.models.error_bodies import error_message, excerpt
from patchbay.models.fast_path import BETWEEN, ChunkTemplate, decode_content, learn_template, plain_prose_end
from patchbay.models.policy import Outcome
from patchbay.models.wire import (
    CallDelta,
    Choice,
    Chunk,
    ErrorEvent,
    FunctionDelta,
    SseDecoder,
    decode,
    decode_chunk,
    sse_event,
)
from patchbay.transcript import text_of

_NULL = Chunk().usage
_MOST_CHOICES = 128
_READ_FIELDS = frozenset({"content", "tool_calls", "role"})


class StreamedAnswer:
    """Reads one stream.

    ``open_choice(index, send)`` makes the state of a choice, which writes by ``send``. ``admitted()`` is called when an allowed
    call has begun in an answer that is held back, and returns whether it may be released. ``count`` is the number of choices
    requested.
    """

    def __init__(
        self,
        open_choice: Callable[[int, Callable[[bytes], None]], ChoiceStream],
        admitted: Callable[[], bool],
        encoder: AnswerEncoder,
        *,
        count: int,
        include_usage: bool,
    ) -> None:
        self.choices: dict[int, ChoiceStream] = {}
        self.usage: Any = None
        self.over = False
        """Every choice has its finish reason."""
        self.discard = False
        """The answer is not for the client: only its usage still matters."""
        self.out: list[bytes] = []
        self._open_choice = open_choice
        self._admitted = admitted
        self._encoder = encoder
        self._head: AnswerHead | None = None
        self._count = count
        self._include_usage = include_usage
        self._usage_apart = False
        self._sse = SseDecoder()
        self._done = False
        self._template: ChunkTemplate | None = None
        """The bytes around the content of choice 0, once known: such content goes straight to its parser."""
        self._attempts_left = 4

    def feed(self, data: bytes) -> bool:
        """Read bytes of the stream. True if they are to be sent on unchanged; else ``out`` is. Raises UpstreamError."""
        template = self._template
        if template is not None and self._sse.empty:
            text = template.only_content(data)
            if text is not None:
                state = self.choices[0]
                if self._encoder.passes_text:
                    return state.parser.take_prose(text) or state.text(text, passable=True)
                if state.kept is None and state.parser.take_prose(text):
                    state.write(self._encoder.text, text)
                else:
                    state.text(text, passable=False)
                return False
        events = self._sse.feed(data)
        at = 0
        while at < len(events):
            at += self._feed_run(events, at) or self._read_one(events[at])
        return False

    def pop_out(self) -> bytes:
        """Return what is to be sent now."""
        out = b"".join(self.out)
        self.out.clear()
        return out

    @property
    def enough(self) -> bool:
        """Whether the only call that is allowed is complete, so that the rest of the stream need not be read."""
        return self._count == 1 and not self._include_usage and bool(self.choices) and all(s.done for s in self.choices.values())

    def close(self) -> None:
        """End the stream. Raises UpstreamError if it ended before the answer did."""
        for one in self._sse.close():
            self._read_one(one)
        if self.discard:
            return
        if not self.choices:
            raise UpstreamError("The upstream's stream ended without an answer.")
        if not self._done and not self.enough and any(not state.ended for state in self.choices.values()):
            raise UpstreamError("The upstream's stream ended before its answer was complete.")
        for state in self.choices.values():
            state.close(None)

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each choice."""
        return [state.outcome for state in self._states()]

    def write_ends(self, total: Callable[[Any], Any]) -> None:
        """Write the rest of each choice; ``total`` returns the usage of all attempts, given this one's."""
        self._encoder.begin(self._head or NO_HEAD)
        states = self._states()
        for state in states:
            state.write_rest()
            along = state is states[-1] and not self._include_usage and not self._usage_apart
            usage = total(self.usage) if along else None
            more = {} if usage is None else {"usage": usage}
            self.out.append(self._encoder.finish(state.index, state.finish_reason(), **more))

    def write_end(self, total: Callable[[Any], Any]) -> None:
        """Write the usage, if the client asked for it or the upstream sent it unasked, and the end of the answer."""
        usage = total(self.usage) if self._include_usage or self._usage_apart else None
        if usage is not None:
            self.out.append(self._encoder.usage(usage))
        self.out.append(self._encoder.end())

    def _states(self) -> Sequence[ChoiceStream]:
        return [self.choices[index] for index in sorted(self.choices)]

    # a run of events that differ in their content only

    def _feed_run(self, events: Sequence[bytes], at: int) -> int:
        """Feed the content of the events from ``at`` on that match the template; return their number.

        Prose is fed at once. Where a marker may begin, and inside a call, each event is fed by itself, so that the client gets
        the arguments in the pieces in which they were written.
        """
        if self._template is None:
            return 0
        pieces = self._template.pieces(events[at:])
        state, write, passable = self.choices[0], self.out.append, self._encoder.passes_text
        parser, begin, size, done = state.parser, 0, len(pieces), 0
        while begin < size:
            end = plain_prose_end(pieces, begin) if parser.in_prose else begin
            if end == begin:
                end = pieces.find(BETWEEN, begin)
                end = end if end >= 0 else size
            fed = pieces[begin:end]
            try:
                text = decode_content(fed)
            except ValueError:
                break
            count = fed.count(BETWEEN) + 1
            if state.text(text, passable=passable):
                write(b"data: " + b"\n\ndata: ".join(events[at + done : at + done + count]) + b"\n\n")
            done += count
            begin = end + 1
        return done

    def _learn_template(self, data: bytes, choice: Choice) -> None:
        """Learn the template from an event that holds only content."""
        content = choice.delta.content if choice.delta is not None else None
        if self._attempts_left and content and isinstance(content, str):
            self._attempts_left -= 1
            self._template = learn_template(data, content)

    def _forget_template(self) -> None:
        """Decode every event from now on: the choice is over."""
        self._template = None
        self._attempts_left = 0

    # one event

    def _read_one(self, data: bytes) -> int:
        """Read one event; return 1."""
        try:
            self._read_event(data)
        except RecursionError:
            raise UpstreamError("The upstream sent an event that is nested too deeply.", body=excerpt(data)) from None
        return 1

    def _read_event(self, data: bytes) -> None:
        if self._done:
            return
        if data == b"[DONE]":
            self._done = True
            self._forget_template()
            return
        if type(data) is ErrorEvent:
            raise UpstreamError(f"The upstream failed in mid-answer: {error_message(data)}", body=excerpt(data))
        try:
            chunk = decode_chunk(data)
        except ValueError:
            self._read_invalid(data)
            return
        if chunk.error != _NULL:
            raise UpstreamError(f"The upstream failed in mid-answer: {error_message(data)}", body=excerpt(data))
        if chunk.usage != _NULL:
            self.usage = decode(bytes(chunk.usage))
        if self.discard:
            return
        if chunk.choices:
            if self._head is None:
                self._begin(AnswerHead(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint))
            self._read_choices(data, chunk.choices)
        elif chunk.usage != _NULL:
            self._usage_apart = True
        elif _is_error(data):
            raise UpstreamError(f"The upstream failed in mid-answer: {error_message(data)}", body=excerpt(data))
        # Any other chunk without choices is dropped: clients that read choices[0] would fail.

    def _begin(self, head: AnswerHead) -> None:
        self._head = head
        self._encoder.begin(head)

    def _read_invalid(self, data: bytes) -> None:
        """Read an event that is not a valid chunk: several in one, or fields of other types."""
        if b"\n" in data:
            for line in data.split(b"\n"):
                if line.strip():
                    self._read_event(line)
            return
        try:
            value = decode(data)
        except (ValueError, RecursionError):
            raise UpstreamError(f"The upstream sent an event that is not JSON: {excerpt(data)}", body=excerpt(data)) from None
        held = not self.choices or any(state.hold for state in self.choices.values())
        if held or not isinstance(value, dict) or value.get("error"):
            raise UpstreamError(f"The upstream sent an event that is no chunk: {error_message(data)}", body=excerpt(data))
        if self._encoder.passes_text:
            self.out.append(sse_event(data))

    def _read_choices(self, data: bytes, choices: Sequence[Choice]) -> None:
        """Read a chunk's choices: pass the chunk on unchanged, or write its parts."""
        # A chunk is passed on whole: it must have one choice, and not its end.
        passable = len(choices) == 1 and choices[0].finish_reason is None
        untouched = passable
        for choice in choices:
            state = self.choices.get(choice.index)
            if state is None:
                if len(self.choices) >= max(self._count, _MOST_CHOICES):
                    raise UpstreamError(f"The upstream sent more than {_MOST_CHOICES} choices.")
                state = self.choices[choice.index] = self._open_choice(choice.index, self.out.append)
            if state.closed:
                untouched = False
            elif choice.message is not None:
                self._write_message(choice.index, choice.message, choice.finish_reason)
                untouched = False
            else:
                untouched = self._read_delta(state, choice, passable=passable) and untouched
                state.ended = state.ended or choice.finish_reason is not None
        if untouched:
            self.out.append(sse_event(data))
            self.choices[choices[0].index].passed()
            if self._count == 1 and not self.choices[choices[0].index].tentative:
                self._learn_template(data, choices[0])
            return
        if len(choices) == 1 and not self._encoder.passes_text:
            state = self.choices[choices[0].index]
            if not (state.hold or state.tentative or state.ended) and self._count == 1:
                self._learn_template(data, choices[0])
        self._write_extras(data)
        for choice in choices:
            if choice.finish_reason is not None:
                self.choices[choice.index].close(choice.finish_reason)
                self._forget_template()
                self.over = len(self.choices) >= self._count and all(state.ended for state in self.choices.values())

    def _read_delta(self, state: ChoiceStream, choice: Choice, *, passable: bool) -> bool:
        """Read a choice's delta. True if its chunk is to be passed on; otherwise all of it but the extras is written."""
        delta = choice.delta
        passable = passable and state.passes
        untouched = passable
        if delta is not None:
            if delta.content and delta.tool_calls:
                passable = untouched = False  # a chunk cannot be passed on in part
            if isinstance(delta.content, list):
                if not passable:
                    state.write(self._encoder.fields, {"content": delta.content})
            elif delta.content is not None:
                logprobs = bytes(choice.logprobs)
                untouched = state.text(delta.content, logprobs=logprobs, passable=passable) and untouched
            if delta.tool_calls:
                untouched = state.native(delta.tool_calls, passable=passable) and untouched
        if state.hold and state.has_call and self._admitted():
            state.release()
        return untouched

    def _write_extras(self, data: bytes) -> None:
        """Write the other fields of a chunk that is not passed on."""
        for choice in decode(data).get("choices") or ():
            extra = {
                key: value for key, value in (choice.get("delta") or {}).items() if key not in _READ_FIELDS and value is not None
            }
            state = self.choices[choice.get("index") or 0]
            if extra and not state.closed:
                state.refused = state.refused or "refusal" in extra
                state.write(self._encoder.fields, extra)

    # the client asked for a stream and the upstream sent a whole completion

    def write_whole(self, completion: dict[str, Any]) -> None:
        """Write a whole completion as a stream."""
        if self._head is None:
            head = (completion.get(name) for name in ("id", "created", "model", "system_fingerprint"))
            self._begin(AnswerHead(*head))
        self._done = True
        self.usage = completion.get("usage")
        for position, choice in enumerate(completion["choices"]):
            self._write_message(position, choice["message"], choice.get("finish_reason"))

    def _write_message(self, position: int, message: dict[str, Any], finish: Any) -> None:
        state = self.choices.get(position) or self._open_choice(position, self.out.append)
        self.choices[position] = state
        extra = {key: value for key, value in message.items() if key not in _READ_FIELDS and value is not None}
        if extra:
            state.refused = "refusal" in extra
            state.write(self._encoder.fields, extra)
        if content := text_of(message.get("content")):
            state.text(content, passable=False)
        deltas = [
            CallDelta(index, call.id, FunctionDelta(call.name, call.raw_arguments), (call.extra or {}).get("extra_content"))
            for index, call in enumerate(native_calls(message))
        ]
        if deltas:
            state.native(deltas)
        if state.hold and state.has_call and self._admitted():
            state.release()
        self._forget_template()
        state.close(finish if isinstance(finish, str) else None)


def _is_error(data: bytes) -> bool:
    """Whether an event without choices is an error in another form than OpenAI's."""
    value = decode(data)
    return isinstance(value, dict) and (value.get("object") == "error" or "detail" in value or "message" in value)
