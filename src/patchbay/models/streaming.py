"""The streamed answer of one attempt: the upstream's events in, the client's events out.

A chunk that needs no change is passed on as the bytes it came in. What each choice makes of its text and calls is in
``answering``; whether the answer is one the client may have is decided by ``exchange`` once it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from patchbay.errors import UpstreamError
from patchbay.models.answering import ChoiceStream
from patchbay.models.completion import Outcome, native_calls
from patchbay.models.faults import error_message, shown
from patchbay.models.shapes import BETWEEN, ContentShape, decode_content, learn_shape, quiet_end
from patchbay.models.sse import ErrorEvent, SseDecoder
from patchbay.models.wire import CallDelta, Choice, Chunk, Envelope, FunctionDelta, decode, decode_chunk, event
from patchbay.transcript import text_of

_NULL = Chunk().usage
_MOST_CHOICES = 128
_READ_FIELDS = frozenset({"content", "tool_calls", "role"})


class StreamedAnswer:
    """Reads one stream.

    ``open_choice(index)`` makes the state of a choice. ``admitted()`` is asked, while an answer is held back, whether it may go
    out now that an allowed call has begun. ``count``: how many choices were asked for.
    """

    def __init__(
        self,
        open_choice: Callable[[int], ChoiceStream],
        admitted: Callable[[], bool],
        *,
        count: int,
        include_usage: bool,
    ) -> None:
        self.choices: dict[int, ChoiceStream] = {}
        self.envelope: Envelope | None = None
        self.usage: Any = None
        self.over = False
        """Every choice said why it ended."""
        self.discard = False
        """The answer is not for the client: only its usage still matters."""
        self.out: list[bytes] = []
        self._open_choice = open_choice
        self._admitted = admitted
        self._count = count
        self._include_usage = include_usage
        self._usage_apart = False
        self._sse = SseDecoder()
        self._done = False
        self._shape: ContentShape | None = None
        """Where it is known: what is around the content of choice 0, whose content may go straight to its parser."""
        self._shapes_left = 4

    def feed(self, data: bytes) -> bool:
        """Take bytes of the stream. True where they go out as they came; else ``out`` has what goes out. Raises UpstreamError."""
        shape = self._shape
        if shape is not None and self._sse.empty:
            text = shape.only_content(data)
            if text is not None:
                state = self.choices[0]
                return state.parser.take_prose(text) or state.text(self._enveloped(), text, self.out.append, passable=True)
        events = self._sse.feed(data)
        at = 0
        while at < len(events):
            at += self._run(events, at) or self._one(events[at])
        return False

    @property
    def enough(self) -> bool:
        """The one call that is wanted is complete, and nothing else is waited for."""
        return self._count == 1 and not self._include_usage and bool(self.choices) and all(s.done for s in self.choices.values())

    def close(self) -> None:
        """The stream is over, or not wanted any more. Raises UpstreamError where it broke off."""
        for one in self._sse.close():
            self._one(one)
        if self.discard:
            return
        if not self.choices:
            raise UpstreamError("The upstream's stream ended without an answer.")
        if not self._done and not self.enough and any(not state.ended for state in self.choices.values()):
            raise UpstreamError("The upstream's stream ended before its answer was complete.")
        for state in self.choices.values():
            state.close(self._enveloped(), None, self.out.append)

    def outcomes(self) -> list[Outcome]:
        """What each choice came to."""
        return [
            Outcome(
                calls=state.calls,
                native=state.native_calls > 0,
                broken=state.broken,
                cut=state.cut,
                visible=state.shown,
                prose=state.wrote_text,
                text="".join(state.raw_text),
                answer=state.answer,
            )
            for state in self._states()
        ]

    def ends(self, total: Callable[[Any], Any]) -> list[bytes]:
        """What is left to write of each choice; ``total`` makes the client's usage of this attempt's."""
        out: list[bytes] = []
        states = self._states()
        for state in states:
            state.write_rest(self._enveloped(), out.append)
            along = state is states[-1] and not self._include_usage and not self._usage_apart
            out.append(self._enveloped().finish(state.index, state.finish_reason(), total(self.usage) if along else None))
        return out

    def usage_chunk(self, total: Callable[[Any], Any]) -> bytes:
        """The last chunk with the usage, where the client asked for one or the upstream sent one."""
        usage = total(self.usage) if self._include_usage or self._usage_apart else None
        return b"" if usage is None else self._enveloped().usage(usage)

    def _states(self) -> Sequence[ChoiceStream]:
        return [self.choices[index] for index in sorted(self.choices)]

    def _enveloped(self) -> Envelope:
        if self.envelope is None:
            self.envelope = Envelope(id=None, created=None, model=None)
        return self.envelope

    # a run of events that hold a piece of content and differ in nothing else

    def _run(self, events: Sequence[bytes], at: int) -> int:
        """Feed the content of the events from ``at`` on that have the known shape; how many there were.

        Prose goes at one blow. Where a marker may begin, and inside a call, each event is fed by itself: the client is to get
        the arguments in the pieces in which they were written.
        """
        if self._shape is None:
            return 0
        pieces = self._shape.pieces(events[at:])
        state, envelope, write = self.choices[0], self._enveloped(), self.out.append
        parser, begin, size, done = state.parser, 0, len(pieces), 0
        while begin < size:
            end = quiet_end(pieces, begin) if parser.in_prose else begin
            if end == begin:
                end = pieces.find(BETWEEN, begin)
                end = end if end >= 0 else size
            fed = pieces[begin:end]
            try:
                text = decode_content(fed)
            except ValueError:
                break
            count = fed.count(BETWEEN) + 1
            if state.text(envelope, text, write, passable=True):
                write(b"data: " + b"\n\ndata: ".join(events[at + done : at + done + count]) + b"\n\n")
            done += count
            begin = end + 1
        return done

    def _learn_shape(self, data: bytes, choice: Choice) -> None:
        """Remember what is around the content of this event, if there is nothing else in it."""
        content = choice.delta.content if choice.delta is not None else None
        if self._shapes_left and content and isinstance(content, str):
            self._shapes_left -= 1
            self._shape = learn_shape(data, content)

    def _forget_shape(self) -> None:
        """Look at each event by itself from now on: the choice is over."""
        self._shape = None
        self._shapes_left = 0

    # one event

    def _one(self, data: bytes) -> int:
        """Take an event by itself; it is one."""
        try:
            self._event(data)
        except RecursionError:
            raise UpstreamError("The upstream sent an event that is nested too deeply.", body=shown(data)) from None
        return 1

    def _event(self, data: bytes) -> None:
        if self._done:
            return
        if data == b"[DONE]":
            self._done = True
            self._forget_shape()
            return
        if type(data) is ErrorEvent:
            raise UpstreamError(f"The upstream failed in mid-answer: {error_message(data)}", body=shown(data))
        try:
            chunk = decode_chunk(data)
        except ValueError:
            self._odd_event(data)
            return
        if chunk.error != _NULL:
            raise UpstreamError(f"The upstream failed in mid-answer: {error_message(data)}", body=shown(data))
        if chunk.usage != _NULL:
            self.usage = decode(bytes(chunk.usage))
        if self.discard:
            return
        if chunk.choices:
            if self.envelope is None:
                self.envelope = Envelope(
                    id=chunk.id, created=chunk.created, model=chunk.model, fingerprint=chunk.system_fingerprint
                )
            self._take(data, chunk.choices, self.envelope)
        elif chunk.usage != _NULL:
            self._usage_apart = True
        elif _is_error(data):
            raise UpstreamError(f"The upstream failed in mid-answer: {error_message(data)}", body=shown(data))
        # anything else without choices says nothing, and clients that look at choices[0] die of it

    def _odd_event(self, data: bytes) -> None:
        """An event that is no chunk: several in one, or one whose fields have other types."""
        if b"\n" in data:
            for line in data.split(b"\n"):
                if line.strip():
                    self._event(line)
            return
        try:
            value = decode(data)
        except (ValueError, RecursionError):
            raise UpstreamError(f"The upstream sent an event that is not JSON: {shown(data)}", body=shown(data)) from None
        held = not self.choices or any(state.hold for state in self.choices.values())
        if held or not isinstance(value, dict) or value.get("error"):
            raise UpstreamError(f"The upstream sent an event that is no chunk: {error_message(data)}", body=shown(data))
        self.out.append(event(data))

    def _take(self, data: bytes, choices: Sequence[Choice], envelope: Envelope) -> None:
        """Take a chunk's choices: pass the chunk on, or write what became of it."""
        write = self.out.append
        # What is to be passed on must be all of the chunk: one choice, not at its end.
        passable = len(choices) == 1 and choices[0].finish_reason is None
        untouched = passable
        for choice in choices:
            state = self.choices.get(choice.index)
            if state is None:
                if len(self.choices) >= max(self._count, _MOST_CHOICES):
                    raise UpstreamError(f"The upstream sent more than {_MOST_CHOICES} choices.")
                state = self.choices[choice.index] = self._open_choice(choice.index)
            if state.closed:
                untouched = False
            elif choice.message is not None:
                self._take_message(choice.index, choice.message, choice.finish_reason)
                untouched = False
            else:
                untouched = self._take_delta(state, choice, envelope, passable=passable) and untouched
                state.ended = state.ended or choice.finish_reason is not None
        if untouched:
            write(event(data))
            for choice in choices:
                state = self.choices[choice.index]
                state.opened = state.shown = True
            if self._count == 1 and not self.choices[choices[0].index].tentative:
                self._learn_shape(data, choices[0])
            return
        self._extras(data, envelope)
        for choice in choices:
            if choice.finish_reason is not None:
                self.choices[choice.index].close(envelope, choice, write)
                self._forget_shape()
                self.over = len(self.choices) >= self._count and all(state.ended for state in self.choices.values())

    def _take_delta(self, state: ChoiceStream, choice: Choice, envelope: Envelope, *, passable: bool) -> bool:
        """Take a choice's delta. True where its chunk is to be passed on; where not, all of it but the extras is written."""
        write, delta = self.out.append, choice.delta
        passable = passable and state.passes
        untouched = passable
        if delta is not None:
            if delta.content and delta.tool_calls:
                passable = untouched = False  # neither can be passed on without the other
            if isinstance(delta.content, list):
                if not passable:
                    state.write_delta(envelope, {"content": delta.content}, write)
            elif delta.content is not None:
                logprobs = bytes(choice.logprobs)
                untouched = state.text(envelope, delta.content, write, logprobs=logprobs, passable=passable) and untouched
            if delta.tool_calls:
                untouched = state.native(envelope, delta.tool_calls, write, passable=passable) and untouched
        if state.hold and state.places_taken and self._admitted():
            state.release(write)
        return untouched

    def _extras(self, data: bytes, envelope: Envelope) -> None:
        """Write what a chunk holds beside content and calls, when the chunk itself is not passed on."""
        for choice in decode(data).get("choices") or ():
            extra = {
                key: value for key, value in (choice.get("delta") or {}).items() if key not in _READ_FIELDS and value is not None
            }
            state = self.choices[choice.get("index") or 0]
            if extra and not state.closed:
                state.refused = state.refused or "refusal" in extra
                state.write_delta(envelope, extra, self.out.append)

    # the client asked for a stream and the upstream sent one JSON

    def take_whole(self, completion: dict[str, Any]) -> None:
        """Tell a whole completion as a stream."""
        if self.envelope is None:
            self.envelope = Envelope(
                id=completion.get("id"),
                created=completion.get("created"),
                model=completion.get("model"),
                fingerprint=completion.get("system_fingerprint"),
            )
        self._done = True
        self.usage = completion.get("usage")
        for position, choice in enumerate(completion["choices"]):
            self._take_message(position, choice["message"], choice.get("finish_reason"))

    def _take_message(self, position: int, message: dict[str, Any], finish: Any) -> None:
        envelope, write = self._enveloped(), self.out.append
        state = self.choices.get(position) or self._open_choice(position)
        self.choices[position] = state
        extra = {key: value for key, value in message.items() if key not in _READ_FIELDS and value is not None}
        if extra:
            state.refused = "refusal" in extra
            state.write_delta(envelope, extra, write)
        content = text_of(message.get("content"))
        if content and state.text(envelope, content, write, passable=state.passes):
            state.write_delta(envelope, {"content": content}, write)
        calls = native_calls(message)
        deltas = [
            CallDelta(index, call.id, FunctionDelta(call.name, call.raw_arguments), (call.extra or {}).get("extra_content"))
            for index, call in enumerate(calls)
        ]
        if deltas and state.native(envelope, deltas, write, passable=state.passes):
            for index, call in enumerate(calls):
                state.write_delta(envelope, {"tool_calls": [{"index": index, **call.to_openai()}]}, write)
        if state.hold and state.places_taken and self._admitted():
            state.release(write)
        state.ended = True
        self._forget_shape()
        state.close(envelope, Choice(finish_reason=finish if isinstance(finish, str) else None), write)


def _is_error(data: bytes) -> bool:
    """Whether an event without choices is an error of a shape other than OpenAI's."""
    value = decode(data)
    return isinstance(value, dict) and (value.get("object") == "error" or "detail" in value or "message" in value)
