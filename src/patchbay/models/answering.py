"""One choice of a streamed answer: the model's chunks in, the client's chunks out.

Text goes through the parser; native calls, reasoning and everything else pass. What the request's policy does not admit is
dropped here, and what may still turn out to break it is held back, so that the exchange can ask again unseen by the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from patchbay.formats.events import CallArguments, CallCut, CallEnd, CallStart, Event, ReasoningDelta, TextDelta, TextWasReasoning
from patchbay.formats.parser import StreamParser
from patchbay.models.callpieces import begins_another
from patchbay.models.choice import Policy
from patchbay.models.completion import finish_reason, is_final
from patchbay.models.wire import CallDelta, Choice, Envelope
from patchbay.types import ToolCall


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
                name and begins_another(call.given_id, call.name, call.pieces, id_=delta.id or "", name=name, arguments=arguments)
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
