"""A streamed answer: the upstream's events in, the client's events out.

A chunk that needs no change is passed on as the bytes it came in. ``ChoiceStream`` parses one choice, drops calls that the
request's policy does not allow, and holds back what may still break it, so that the exchange can retry unseen by the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from patchbay.errors import UpstreamError
from patchbay.formats.events import CallArguments, CallCut, CallEnd, CallStart, Event, ReasoningDelta, TextDelta, TextWasReasoning
from patchbay.formats.parser import StreamParser
from patchbay.models.completion import finish_reason, is_final, native_calls
from patchbay.models.error_bodies import error_message, shown
from patchbay.models.fast_path import BETWEEN, ChunkTemplate, decode_content, learn_template, plain_prose_end
from patchbay.models.policy import Outcome, Policy
from patchbay.models.tool_call_deltas import begins_new_call
from patchbay.models.wire import (
    CallDelta,
    Choice,
    Chunk,
    Envelope,
    ErrorEvent,
    FunctionDelta,
    SseDecoder,
    decode,
    decode_chunk,
    sse_event,
)
from patchbay.transcript import text_of
from patchbay.types import ToolCall

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
        self._template: ChunkTemplate | None = None
        """Where it is known: what is around the content of choice 0, whose content may go straight to its parser."""
        self._attempts_left = 4

    def feed(self, data: bytes) -> bool:
        """Take bytes of the stream. True where they go out as they came; else ``out`` has what goes out. Raises UpstreamError."""
        template = self._template
        if template is not None and self._sse.empty:
            text = template.only_content(data)
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
        if self._template is None:
            return 0
        pieces = self._template.pieces(events[at:])
        state, envelope, write = self.choices[0], self._enveloped(), self.out.append
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
            if state.text(envelope, text, write, passable=True):
                write(b"data: " + b"\n\ndata: ".join(events[at + done : at + done + count]) + b"\n\n")
            done += count
            begin = end + 1
        return done

    def _learn_template(self, data: bytes, choice: Choice) -> None:
        """Remember what is around the content of this event, if there is nothing else in it."""
        content = choice.delta.content if choice.delta is not None else None
        if self._attempts_left and content and isinstance(content, str):
            self._attempts_left -= 1
            self._template = learn_template(data, content)

    def _forget_template(self) -> None:
        """Look at each event by itself from now on: the choice is over."""
        self._template = None
        self._attempts_left = 0

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
            self._forget_template()
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
        self.out.append(sse_event(data))

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
            write(sse_event(data))
            for choice in choices:
                state = self.choices[choice.index]
                state.opened = state.shown = True
            if self._count == 1 and not self.choices[choices[0].index].tentative:
                self._learn_template(data, choices[0])
            return
        self._extras(data, envelope)
        for choice in choices:
            if choice.finish_reason is not None:
                self.choices[choice.index].close(envelope, choice, write)
                self._forget_template()
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
        self._forget_template()
        state.close(envelope, Choice(finish_reason=finish if isinstance(finish, str) else None), write)


def _is_error(data: bytes) -> bool:
    """Whether an event without choices is an error of a shape other than OpenAI's."""
    value = decode(data)
    return isinstance(value, dict) and (value.get("object") == "error" or "detail" in value or "message" in value)


@dataclass
class _NativeCall:
    """A call of the upstream's own, as its pieces come."""

    place: int | None  # its index for the client; None: dropped
    id: str
    name: str
    given_id: str
    """The upstream's own; ``id`` is one that no other call of the answer has."""
    pieces: list[str] = field(default_factory=list)
    extra: dict[str, Any] | None = None


class ChoiceStream:
    """The state of one choice of one attempt.

    ``hold``: write nothing until ``release()``. ``tentative``: the model may be asked again as long as nothing of this answer was
    shown, so an empty first chunk is not passed on. ``legacy``: the client speaks ``function_call``. ``keep``: keep content back,
    which is to be JSON or nothing; "prose": only what does not begin like JSON.
    """

    def __init__(
        self,
        index: int,
        parser: StreamParser,
        policy: Policy,
        *,
        hold: bool,
        tentative: bool,
        legacy: bool,
        keep: Literal["all", "prose"] | None = None,
    ) -> None:
        self.index = index
        self.parser = parser
        self.policy = policy
        self.hold = hold
        self.legacy = legacy
        self.tentative = tentative
        self.raw_text: list[str] = []
        """What the model wrote, kept where it may have to be shown to it again."""
        self.opened = False
        """A chunk of this choice was written or held back: the role is told."""
        self.shown = False
        """The client saw something of this choice."""
        self.held: list[bytes] = []
        self.kept: list[str] | None = None if keep is None else []
        """Content kept back: written at the end, and only without calls."""
        self._lets_json_pass = keep == "prose"
        self.refused = False
        """The model gave a refusal."""
        self.calls: list[ToolCall] = []
        self.done = False
        """The one call that is wanted is complete: nothing that follows matters."""
        self.native_calls = 0
        self.finish: str | None = None
        self.ended = False
        """The upstream said why it stopped, or its stream is over."""
        self.broken = False
        """A call came that the policy does not admit."""
        self.was_reasoning = False
        self.wrote_text = False
        self.wrote_call = False
        self.cut = False
        self._places = 0
        self._place: int | None = None
        self._native: dict[int, _NativeCall] = {}
        self.closed = False

    @property
    def places_taken(self) -> bool:
        """A call was admitted."""
        return self._places > 0

    @property
    def passes(self) -> bool:
        """Chunks may be passed on as they came: nothing is held back, and the role was told where it had to wait for that."""
        return not self.hold and self.kept is None and (self.shown or not self.tentative)

    def text(
        self,
        envelope: Envelope,
        content: str,
        out: Callable[[bytes], None],
        *,
        logprobs: bytes = b"null",
        passable: bool,
    ) -> bool:
        """Feed content. True where the chunk it came in is to be passed on as it is: it was prose and all of it came out.

        ``passable``: that is possible. Where it is not, all that comes out is written here.
        """
        if self.tentative:
            self.raw_text.append(content)
        if not content:
            return passable
        if self.done:
            return False
        events = self.parser.feed(content)
        if len(events) == 1 and passable:
            event = events[0]
            if type(event) is TextDelta and event.text == content:
                self.wrote_text = True
                return True
        if events:
            self.events(envelope, events, out, logprobs)
        elif logprobs != b"null":
            self.write(envelope.delta(self.index, {}, logprobs=logprobs), out)
        return False

    def events(self, envelope: Envelope, events: list[Event], out: Callable[[bytes], None], logprobs: bytes = b"null") -> None:
        """Write what the parser found."""
        for event in events:
            if type(event) is CallArguments and not self.legacy:
                if self._place is not None:
                    self.write(envelope.arguments(self.index, self._place, event.text), out)
                continue
            delta = self._delta(event)
            if delta is not None:
                self.write_delta(envelope, delta, out, logprobs=logprobs)
                logprobs = b"null"

    def write_delta(
        self, envelope: Envelope, delta: dict[str, Any], out: Callable[[bytes], None], *, logprobs: bytes = b"null"
    ) -> None:
        """Write a delta; the first one of a choice says the role."""
        if not self.opened:
            self.opened = True
            delta = {"role": "assistant", **delta}
        self.write(envelope.delta(self.index, delta, logprobs=logprobs), out)

    def write(self, data: bytes, out: Callable[[bytes], None]) -> None:
        """Write a chunk, or hold it back."""
        if self.hold:
            self.held.append(data)
        else:
            self.shown = True
            out(data)

    def release(self, out: Callable[[bytes], None]) -> None:
        """What was held back may be seen."""
        self.hold = False
        self.shown = self.shown or bool(self.held)
        for data in self.held:
            out(data)
        self.held.clear()

    def _delta(self, event: Event) -> dict[str, Any] | None:
        if type(event) is TextDelta:
            if self.done:
                return None
            self.wrote_text = True
            return None if self.kept is not None and self._keeps(event.text) else {"content": event.text}
        if type(event) is ReasoningDelta:
            return {"reasoning_content": event.text}
        if type(event) is CallArguments:
            return self._arguments(event.text)
        if type(event) is CallStart:
            return self._start(event.id, event.name)
        if type(event) is CallEnd:
            self._end(event.call)
        elif type(event) is CallCut:
            self.cut = self.cut or self._place is not None or event.index is None
            self._place = None
        elif type(event) is TextWasReasoning:
            self.was_reasoning = True
        return None

    def _admit(self, name: str) -> bool:
        if not self.policy.admits(name):
            self.broken = True
            return False
        return not (self.policy.single and self._places > 0)

    def _start(self, call_id: str, name: str) -> dict[str, Any] | None:
        if not self._admit(name):
            self._place = None
            return None
        self._place = self._places
        self._places += 1
        self.wrote_call = True
        if self.legacy:
            return {"function_call": {"name": name, "arguments": ""}}
        return {
            "tool_calls": [{"index": self._place, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}]
        }

    def _arguments(self, text: str) -> dict[str, Any] | None:
        """A piece of arguments for a client that speaks ``function_call``; for others see ``Envelope.arguments``."""
        return None if self._place is None else {"function_call": {"arguments": text}}

    def _end(self, call: ToolCall) -> None:
        if self._place is not None:
            self.calls.append(call)
            self.done = self.policy.single
            self._place = None

    def _keeps(self, text: str) -> bool:
        """Keep content back. False: it begins like JSON, from a server that takes the format, and all of it may pass."""
        assert self.kept is not None
        if self._lets_json_pass and (begin := text.lstrip()[:1]):
            self._lets_json_pass = False
            if begin in "{[":
                self.kept = None
                self.tentative = False
                return False
        self.kept.append(text)
        return True

    @property
    def answer(self) -> str | None:
        """The content that was kept back and is to be JSON."""
        if self.kept is None or is_final(self.finish, self.refused):
            return None
        return self.parser.reply.reasoning if self.answered_unopened else "".join(self.kept)

    def write_rest(self, envelope: Envelope, out: Callable[[bytes], None]) -> None:
        """The answer is accepted: write what was held or kept back."""
        self.release(out)
        if self.kept:
            if not (self.calls or self.wrote_call or self.cut):
                self.write_delta(envelope, {"content": "".join(self.kept)}, out)
        elif self.answered_unopened:
            self.write_delta(envelope, {"content": self.parser.reply.reasoning}, out)

    @property
    def answered_unopened(self) -> bool:
        """It was thought that the prompt opens the reasoning, and nothing closed it: what was told as reasoning is the answer."""
        if not self.parser.prefilled or self.finish == "length":
            return False
        reply = self.parser.reply
        return reply.content is None and bool(reply.reasoning) and not (reply.tool_calls or reply.incomplete or self.native_calls)

    # calls of the upstream's own

    def native(self, envelope: Envelope, deltas: list[CallDelta], out: Callable[[bytes], None], *, passable: bool = True) -> bool:
        """Take native call deltas. True where the chunk is to be passed on as it is; see ``text``."""
        untouched = passable and not self.legacy
        for position, delta in enumerate(deltas):
            key = delta.index if delta.index is not None else self._key_of(delta, position)
            function = delta.function
            name = function.name if function is not None else None
            arguments = (function.arguments if function is not None else None) or ""
            call = self._native.get(key)
            if call is None or (
                name
                and begins_new_call(call.given_id, call.name, call.pieces, id_=delta.id or "", name=name, arguments=arguments)
            ):
                call = self._begin_native(key, delta, name or "")
                untouched = untouched and call.id == delta.id
            if arguments:
                call.pieces.append(arguments)
            if delta.extra_content is not None:
                call.extra = {"extra_content": delta.extra_content}
            untouched = untouched and call.place == delta.index
        if not untouched:
            for delta in deltas:
                self._rewrite(envelope, delta, out)
        return untouched

    def _key_of(self, delta: CallDelta, position: int) -> int:
        """Servers that send no index send whole calls, or pieces of the last one."""
        if delta.function is not None and delta.function.name:
            return len(self._native)
        return max(self._native, default=position)

    def _begin_native(self, key: int, delta: CallDelta, name: str) -> _NativeCall:
        self.native_calls += 1
        place = None
        if self._admit(name):
            place = self._places
            self._places += 1
            self.wrote_call = True
        if key in self._native:  # the same index begun again: the finished call moves aside
            self._native[-len(self._native) - 1] = self._native[key]
        given = delta.id or ""
        number = self.native_calls - 1
        own = (
            given if given and all(other.given_id != given for other in self._native.values()) else f"call_{self.index}_{number}"
        )
        call = self._native[key] = _NativeCall(place, own, name, given)
        return call

    def _rewrite(self, envelope: Envelope, delta: CallDelta, out: Callable[[bytes], None]) -> None:
        key = delta.index if delta.index is not None else max(self._native)
        call = self._native[key]
        if call.place is None:
            return
        function: dict[str, Any] = {}
        if delta.function is not None:
            if delta.function.name:
                function["name"] = delta.function.name
            function["arguments"] = delta.function.arguments or ""
        if self.legacy:
            self.write_delta(envelope, {"function_call": function}, out)
            return
        shown: dict[str, Any] = {"index": call.place}
        if delta.function is not None and delta.function.name:
            shown |= {"id": call.id, "type": "function"}
        if delta.extra_content is not None:
            shown["extra_content"] = delta.extra_content
        self.write_delta(envelope, {"tool_calls": [{**shown, "function": function}]}, out)

    # the end

    def close(self, envelope: Envelope, choice: Choice | None, out: Callable[[bytes], None]) -> None:
        """The answer is over: what the parser held comes out, native calls are complete."""
        if self.closed:
            return
        self.closed = True
        if choice is not None:
            self.finish = choice.finish_reason
        done = self.done
        events = self.parser.close()
        if not done:
            self.events(envelope, events, out)
        self.calls += [
            ToolCall(call.id, call.name, "".join(call.pieces) or "{}", call.extra)
            for call in sorted(self._native.values(), key=lambda call: call.place or 0)
            if call.place is not None
        ]
        self.done = self.policy.single and bool(self.calls)

    def finish_reason(self) -> str:
        """What the client is told."""
        calls = self.wrote_call or bool(self.calls)
        return str(finish_reason(self.finish, calls=calls, native=self.native_calls > 0, cut=self.cut, legacy=self.legacy))
