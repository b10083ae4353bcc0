"""One choice of an answer: its text and its own calls become parts, which pass one gate and are sent or held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from patchbay.formats.events import CallArguments, CallCut, CallEnd, CallStart, ReasoningDelta, TextDelta, TextWasReasoning
from patchbay.formats.parser import StreamParser
from patchbay.formats.values.tool_names import ToolRules
from patchbay.models.native_calls import NativeCalls
from patchbay.models.options import TextOptions
from patchbay.models.parts import NO_LOGPROBS, InvalidCall, OtherFields, Part
from patchbay.models.policy import ChoiceOutcome, Policy
from patchbay.types import ToolCall

Send = Callable[[int, Part, bytes], bool]
"""Sends a part of a choice, with the logprobs of its chunk as JSON; returns whether the client sees anything of it."""


def make_parser(rules: ToolRules, options: TextOptions, *, prefilled: bool, begins_json: bool = False) -> StreamParser:
    """Return the parser of a choice. ``prefilled``: the prompt opened the reasoning (else the text decides).

    JSON that was asked for (``begins_json``) has no reasoning before it, and tags in its strings are none.
    """
    return StreamParser(
        rules,
        format=options.format,
        tool_call_tag=options.tool_call_tag,
        tool_result_tag=options.tool_result_tag,
        lenient_fences=options.lenient_fences,
        reasoning=options.reasoning and (prefilled or not begins_json),
        reasoning_tag=options.reasoning_tag,
        reasoning_prefilled=prefilled or None,
        unknown_tools=options.unknown_tools,
        xml_tools=options.xml_tools,
        generate_id=options.generate_id,
    )


class ChoiceReader:
    """Reads one choice of one attempt.

    ``make_parser``: returns the parser of the text; ``begins_json``: the text begins like JSON that was asked for. ``hold``: send
    nothing until ``send_withheld``. ``tentative``: the model may be asked again as long as nothing was sent, so an empty first
    chunk is not passed on. ``keep``: keep back content, which has to be JSON; "prose": only if it does not begin like JSON.
    ``keeps_invalid``: invalid calls are sent too, for an executor that answers them.
    """

    def __init__(
        self,
        index: int,
        make_parser: Callable[..., StreamParser],
        native: NativeCalls,
        policy: Policy,
        send: Send,
        *,
        hold: bool,
        tentative: bool,
        keep: Literal["all", "prose"] | None = None,
        keeps_invalid: bool = False,
    ) -> None:
        self.index = index
        self._make_parser = make_parser
        self._parser: StreamParser | None = None
        self.hold = hold
        self.tentative = tentative
        self.has_sent = False
        """Something of this choice was sent."""
        self.visible = False
        """Some of its text or of a call was sent."""
        self.kept: list[str] | None = None if keep is None else []
        """Content kept back, to be sent at the end unless there are calls."""
        self.refused = False
        """The model gave a refusal."""
        self.done = False
        """The only call that is allowed is complete: the rest is ignored."""
        self.ended = False
        """The server sent the finish reason, or its stream is over."""
        self.closed = False
        self.was_reasoning = False
        self._native = native
        self._policy = policy
        self._send = send
        self._keeps_invalid = keeps_invalid
        self._pending: list[tuple[Part, bytes]] = []
        """Parts held back until ``send_withheld()``."""
        self.raw_text: list[str] = []
        """The pieces of the model's text."""
        self.raw_reasoning: list[str] = []
        """The pieces of the reasoning that its server sent apart."""
        self._may_repeat = tentative
        """The text may have to be repeated to the model."""
        self._passes_json = keep == "prose"
        self._may_begin_json = keep is not None
        self.begins_json = False
        """The text was read as the JSON that was asked for."""
        self.calls: list[ToolCall] = []
        """The calls that were admitted, native ones included."""
        self._invalid: list[ToolCall] = []
        self._finish: str | None = None
        self._breaks_policy = False
        self._has_text = False
        self._cut = False
        self._indices = 0
        self._text_calls: dict[int, int | None] = {}
        self._native_calls: dict[int, int | None] = {}
        """The client's indices of the calls that have begun, by the parser's or the server's; None: not for the client."""

    @property
    def parser(self) -> StreamParser:
        """The parser of the text, made when some comes: a choice with native calls alone needs none."""
        if self._parser is None:
            self._parser = self._make_parser()
        return self._parser

    @property
    def repairs(self) -> int:
        """How many repairs the reading of the text took."""
        return self._parser.repairs if self._parser is not None else 0

    @property
    def has_call(self) -> bool:
        """A call was admitted."""
        return self._indices > 0

    @property
    def may_pass(self) -> bool:
        """Whether chunks may be passed on unchanged: nothing is held back, and the role was sent if it had to wait."""
        return not self.hold and self.kept is None and (self.has_sent or not self.tentative)

    # what the server sends

    def read_text(self, content: str, *, logprobs: bytes = NO_LOGPROBS, passable: bool, is_whole: bool = False) -> bool:
        """Read content. True if its chunk is to be passed on unchanged: all of it is prose that the parser returned at once.

        ``passable``: the chunk may be passed on. If it is not, the parser's parts are sent here. ``is_whole``: no more follows.
        """
        if not content:
            return passable
        self.raw_text.append(content)
        if self._may_begin_json:
            content = content.lstrip()
            self._may_begin_json = not content
            if content[:1] in ("{", "["):
                self.begins_json = True
                self._parser = self._make_parser(begins_json=True)
        if self.done:
            return False
        events = self.parser.close(content) if is_whole else self.parser.feed(content)
        if passable and len(events) == 1:
            event = events[0]
            if type(event) is TextDelta and event.text == content:
                self._has_text = True
                return True
        if events:
            self._admit(events, self._text_calls, logprobs)
        elif logprobs != NO_LOGPROBS:
            self.send(OtherFields({}), logprobs)
        return False

    def read_native_calls(self, deltas: Sequence[Any], *, passable: bool = False) -> bool:
        """Read the server's own calls. True if the chunk is to be passed on unchanged; see ``read_text``."""
        parts = self._native.feed(deltas)
        if passable and self._native.unchanged and self._admits_unchanged(parts):
            for part in self._native.late:
                self.send(part)
            return True
        self._admit(parts, self._native_calls)
        return False

    def note_passed_on(self) -> None:
        """Note that a chunk was passed on unchanged."""
        self.has_sent = True
        self.visible = self.visible or self._has_text or self._indices > 0

    def send(self, part: Part, logprobs: bytes = NO_LOGPROBS) -> None:
        """Send a part, or hold it back."""
        if self.hold:
            self._pending.append((part, logprobs))
            return
        if self._send(self.index, part, logprobs):
            self.has_sent = True
            self.visible = self.visible or not isinstance(part, ReasoningDelta | OtherFields)

    def send_withheld(self) -> None:
        """Send what was held back, and send at once from now on."""
        self.hold = False
        pending, self._pending = self._pending, []
        for part, logprobs in pending:
            self.send(part, logprobs)

    # the gate

    def _admit(self, parts: Sequence[Part], indices: dict[int, int | None], logprobs: bytes = NO_LOGPROBS) -> None:
        """Send the parts that the client gets; the first part of text or of a call gets the ``logprobs`` of the chunk."""
        for place, part in enumerate(parts):
            if isinstance(part, TextDelta):
                if self.done:
                    continue
                self._has_text = True
                if self.kept is not None and self._keep_back(part.text):
                    continue
            elif isinstance(part, TextWasReasoning):
                self._move_to_reasoning(part)
                continue
            elif not isinstance(part, ReasoningDelta):
                admitted = self._admit_call(part, indices, parts[place + 1 : place + 2])
                if admitted is None:
                    continue
                self._record(admitted)
                if isinstance(part, CallEnd) and indices is self._text_calls:
                    self.done = self._policy.single
                if not isinstance(part, CallStart):
                    self.send(admitted)
                    continue
                part = admitted  # noqa: PLW2901  (with the client's index)
            self.send(part, logprobs)
            logprobs = NO_LOGPROBS

    def _admit_call(self, part: Any, indices: dict[int, int | None], following: Sequence[Any]) -> Part | None:
        """Return a part of a call under the client's index; None if the client does not get it."""
        kind = type(part)
        if kind is CallStart:
            if not self._keeps_invalid and following and not _begins_object(following[0]):
                indices[part.index] = None  # its end says that it is invalid
                return None
            index = indices[part.index] = self._next_index(part.name)
        elif kind is InvalidCall or (kind is CallEnd and not _is_object(part.call.raw_arguments)):
            return self._admit_invalid(part, indices)
        elif kind is CallCut and part.broken and part.call.name:
            call = part.call
            return self._admit_invalid(InvalidCall(part.index, ToolCall(call.id, call.name, call.raw_arguments)), indices)
        elif kind is CallCut and part.index is None:
            self._cut = True
            return None
        else:
            index = indices[part.index]
        if index is None:
            return None
        admitted: Part = part if index == part.index else replace(part, index=index)
        return admitted

    def _admit_invalid(self, part: CallEnd | InvalidCall, indices: dict[int, int | None]) -> Part | None:
        """Record an invalid call, or return it for an executor."""
        index, name = indices.get(part.index), part.call.name
        if not self._keeps_invalid:
            if index is not None or (self._policy.admits(name) and not (self._policy.single and self._indices)):
                self._invalid.append(part.call)
            return None
        if part.index not in indices:
            index = self._next_index(name)
        return None if index is None else InvalidCall(index, part.call)

    def _next_index(self, name: str) -> int | None:
        """Return the client's index of a call that begins; None if the client does not get it."""
        if not self._policy.admits(name):
            self._breaks_policy = True
            return None
        if self._policy.single and self._indices:
            return None
        self._indices += 1
        return self._indices - 1

    def _admits_unchanged(self, parts: Sequence[Part]) -> bool:
        """Whether the client gets all these parts of the server's own calls, as they are; if so, they are admitted."""
        policy, expected, indices = self._policy, self._indices, self._native_calls
        for part in parts:
            if isinstance(part, CallStart):
                if part.index != expected or not policy.admits(part.name) or (policy.single and expected):
                    return False
                expected += 1
            elif isinstance(part, InvalidCall) or indices.get(part.index, part.index) != part.index:  # type: ignore[union-attr,arg-type]
                return False
        for index in range(self._indices, expected):
            indices[index] = index
        self._indices = expected
        for part in parts:
            self._record(part)
        return True

    def _record(self, part: Part) -> None:
        """Record what the outcome says of a call."""
        if isinstance(part, CallEnd | InvalidCall):
            self.calls.append(part.call)
        elif isinstance(part, CallCut):
            self._cut = True

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

    def _move_to_reasoning(self, part: TextWasReasoning) -> None:
        """Turn the text that was not sent yet into reasoning: it is now known to be that."""
        self.was_reasoning = True
        held = [entry.text for entry, _ in self._pending if isinstance(entry, TextDelta)]
        self._pending = [entry for entry in self._pending if not isinstance(entry[0], TextDelta)]
        if text := "".join(held + (self.kept or [])).strip():
            self.send(ReasoningDelta(text))
        if self.kept:
            self.kept.clear()
        elif not self.hold:
            self.send(part)

    # the end

    def close(self, finish: Any) -> None:
        """End the choice: send the rest of the parser's text, complete the server's own calls."""
        if self.closed:
            return
        self.closed = self.ended = True
        self._finish = finish if isinstance(finish, str) else None
        if self._parser is not None:
            events, done = self._parser.close(), self.done
            if not done:
                self._admit(events, self._text_calls)
        self._admit(self._native.close(self._finish), self._native_calls)
        if self._finish == "length" and self._invalid:  # asking again would end there too
            self._invalid.clear()
            self._cut = True
        self.done = self._policy.single and bool(self.calls)

    def abandon(self) -> None:
        """Send the rest of the text of an answer that the server broke off."""
        if self._parser is not None and not (self.closed or self.hold or self.done or self.kept is not None):
            self._admit([event for event in self._parser.close() if isinstance(event, TextDelta | ReasoningDelta)], {})
        self.closed = True

    @property
    def outcome(self) -> ChoiceOutcome:
        """The outcome of the choice."""
        return ChoiceOutcome(
            calls=self.calls,
            invalid=self._invalid,
            native=len(self._native) > 0,
            breaks_policy=self._breaks_policy,
            cut=self._cut,
            at_limit=self._finish == "length",
            visible=self.visible,
            prose=self._has_text,
            text="".join(self.raw_text) if self._may_repeat else "",
            answer=self.answer,
        )

    @property
    def answer(self) -> str | None:
        """The content that was kept back and has to be JSON."""
        if self.kept is None or self.refused or self._finish in ("length", "content_filter"):
            return None  # asking again would not help
        return self.parser.reply.reasoning if self.answered_unopened else "".join(self.kept)

    @property
    def answered_unopened(self) -> bool:
        """Whether the answer was taken for reasoning: the prompt was expected to open it, and nothing closed it."""
        parser = self._parser
        if parser is None or not parser.prefilled or self._finish == "length":
            return False
        reply = parser.reply
        return reply.content is None and bool(reply.reasoning) and not (reply.tool_calls or reply.incomplete or len(self._native))

    def send_rest(self) -> None:
        """Send what was held or kept back: the answer is accepted."""
        self.send_withheld()
        if self.kept:
            if not (self.calls or self._indices or self._cut):
                self.send(TextDelta("".join(self.kept)))
        elif self.answered_unopened:
            self.send(TextDelta(self.parser.reply.reasoning or ""))

    def finish_reason(self) -> str:
        """Return the client's finish reason: the server's, unless the answer is a call or was cut off inside one."""
        given = self._finish
        if given == "content_filter":
            return "content_filter"
        if self._cut:
            return "length"
        if self._indices:
            # Only the server knows whether its own call is all that the model wanted to write.
            return "length" if given == "length" and len(self._native) else "tool_calls"
        return given if given not in (None, "tool_calls") else "stop"


def _is_object(arguments: str) -> bool:
    """Whether a call's arguments, which are valid JSON, are an object."""
    return arguments[:1] == "{" or arguments.lstrip()[:1] == "{"


def _begins_object(part: Any) -> bool:
    """Whether the part after the start of a call is not the beginning of arguments other than an object."""
    return type(part) is not CallArguments or part.text.lstrip()[:1] in ("{", "")
