"""Reads an answer of the upstream, streamed or whole: chunks or a document in, parts to the encoder out.

A chunk that needs no change is passed on as the bytes it came in, where the client reads such chunks. The encoder writes the
parts of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, cast

from patchbay.errors import PatchbayError, UpstreamError
from patchbay.formats.events import TextDelta
from patchbay.models.choice import ChoiceReader, Send
from patchbay.models.encoder import AnswerEncoder, Out
from patchbay.models.error_bodies import error_message, excerpt
from patchbay.models.fast_path import BETWEEN, ChunkTemplate, decode_content, learn_template, plain_prose_end
from patchbay.models.parts import NO_HEAD, AnswerHead, OtherFields, Part, merged_fields
from patchbay.models.policy import ChoiceOutcome
from patchbay.models.wire import Choice, Chunk, ErrorEvent, SseDecoder, decode, decode_chunk, encode, sse_event

_MOST_CHOICES: Final = 128
_READ_FIELDS: Final = frozenset({"content", "tool_calls", "role"})
_CHUNK_FIELDS: Final = frozenset({"choices", "usage", "object"})
_CHOICE_FIELDS: Final = frozenset({"delta", "message", "logprobs", "finish_reason"})


def read_completion(answer: bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a chat completion, decoded; raises UpstreamError for anything else, with the upstream's message."""
    completion: Any = answer
    if isinstance(answer, bytes):
        try:
            completion = decode(answer)
        except (ValueError, RecursionError):
            raise UpstreamError(f"The upstream's answer is not JSON: {excerpt(answer)}", body=excerpt(answer)) from None
    choices = completion.get("choices") if isinstance(completion, Mapping) else None
    if isinstance(choices, list) and choices and all(map(_has_message, choices)):
        return cast("Mapping[str, Any]", completion)
    body = answer if isinstance(answer, bytes) else str(answer).encode()
    if not isinstance(completion, Mapping) or (completion.get("error") and not choices):
        raise UpstreamError(f"The upstream failed: {error_message(body)}", body=excerpt(body))
    raise UpstreamError(f"The upstream's answer has no choices: {excerpt(body)}", body=excerpt(body))


def _has_message(choice: Any) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("message"), dict)


class AnswerReader(Generic[Out]):
    """Reads one answer.

    ``open_choice(index, send)`` makes the reader of a choice. ``admitted()`` is called when an allowed call has begun in an
    answer that is held back, and returns whether it may be released. ``count`` is the number of choices requested.
    ``include_usage``: the client wants the usage. ``unasked_usage``: so it may if the server sends it unasked. ``collects``: the
    client gets the stream as a document. ``left_out`` are parameters of the client that the request does not have.
    """

    def __init__(
        self,
        open_choice: Callable[[int, Send], ChoiceReader],
        admitted: Callable[[], bool],
        encoder: AnswerEncoder[Out],
        *,
        count: int,
        include_usage: bool,
        unasked_usage: bool,
        collects: bool,
        left_out: frozenset[str],
    ) -> None:
        self.choices: dict[int, ChoiceReader] = {}
        self.usage: Any = None
        self.over = False
        """Every choice has its finish reason."""
        self.discard = False
        """The answer is not for the client: only its usage still matters."""
        self.out: list[Out] = []
        self.failure: PatchbayError | None = None
        """The upstream broke off its stream, or its answer cannot be used: ``close`` raises this, after all that came before."""
        self.completion: Mapping[str, Any] | None = None
        """The answer, if it came as one document."""
        self._others: dict[str, Any] | None = {"object": "chat.completion", "choices": {}} if collects else None
        """The other fields of a stream's chunks and, by index, of their choices."""
        self._open_choice = open_choice
        self._admitted = admitted
        self._encoder = encoder
        self._head: AnswerHead | None = None
        self._count = count
        self._include_usage = include_usage
        self._left_out = left_out
        self._usage_apart = False
        self._unasked_usage = unasked_usage
        self._sse = SseDecoder()
        self._done = False
        self._template: ChunkTemplate | None = None
        """The bytes around the content of choice 0, once known: such content goes straight to its parser."""
        self._attempts_left = 4

    def feed(self, data: bytes) -> bool:
        """Read bytes of the stream. True if they are to be sent on unchanged; else ``out`` is."""
        template = self._template
        if template is not None and self._sse.empty:
            text = template.only_content(data)
            if text is not None:
                choice = self.choices[0]
                if self._encoder.passes_text:
                    if choice.parser.take_prose(text):
                        choice.raw_text.append(text)
                        return True
                    return choice.read_text(text, passable=True)
                if choice.kept is None and choice.parser.take_prose(text):
                    choice.raw_text.append(text)
                    choice.send(TextDelta(text))
                else:
                    choice.read_text(text, passable=False)
                return False
        try:
            events = self._sse.feed(data)
            at = 0
            while at < len(events):
                at += self._feed_run(events, at) or self._read_one(events[at])
        except UpstreamError as error:
            self._break_off(error)
        return False

    def read_chunk(self, chunk: Chunk) -> None:
        """Read a chunk that did not come as bytes."""
        try:
            self._read_chunk(chunk)
        except UpstreamError as error:
            self._break_off(error)

    def read_whole(self, completion: Mapping[str, Any], body: bytes | None) -> None:
        """Read an answer that came as one document, and ``body``, its JSON."""
        get = completion.get
        fields = get("id"), get("created"), get("model"), get("system_fingerprint"), get("service_tier")
        self._begin(AnswerHead(*fields, completion=completion, body=body, left_out=self._left_out))
        self._done = True
        self.completion = completion
        self.usage = completion.get("usage")
        for index, choice in enumerate(completion["choices"]):
            self._read_message(self._choice(index), choice["message"], choice.get("finish_reason"))

    def pop_out(self) -> Out:
        """Return what is to be sent now."""
        out = self._encoder.join(self.out)
        self.out.clear()
        return out

    @property
    def enough(self) -> bool:
        """Whether the only call that is allowed is complete, so that the rest of the stream need not be read."""
        return self._count == 1 and not self._include_usage and bool(self.choices) and all(s.done for s in self.choices.values())

    def close(self) -> None:
        """End the stream. Raises UpstreamError if it ended before the answer did."""
        if self.failure is None:
            for one in self._sse.close():
                self._read_one(one)
        if self.failure is not None:
            raise self.failure
        if self.discard:
            return
        if not self.choices:
            raise UpstreamError("The upstream's stream ended without an answer.")
        if not self._done and not self.enough and any(not choice.ended for choice in self.choices.values()):
            raise UpstreamError("The upstream's stream ended before its answer was complete.")
        for choice in self.choices.values():
            choice.close(None)

    def outcomes(self) -> list[ChoiceOutcome]:
        """Return the outcome of each choice."""
        return [choice.outcome for choice in self._in_order()]

    def write_ends(self, total: Callable[[Any], Any]) -> None:
        """Write the rest of each choice; ``total`` returns the usage of all attempts, given this one's."""
        self._encoder.begin_answer(self._head or NO_HEAD)
        choices = self._in_order()
        for choice in choices:
            choice.send_rest()
            along = choice is choices[-1] and not self._include_usage and not self._usage_apart
            usage = total(self.usage) if along else None
            more = {} if usage is None else {"usage": usage}
            self.out.append(self._encoder.finish(choice.index, choice.finish_reason(), **more))

    def write_end(self, total: Callable[[Any], Any]) -> None:
        """Write the usage, if the client asked for it or the upstream sent it unasked, and the end of the answer."""
        usage = total(self.usage) if self._include_usage or self._usage_apart else None
        if usage is not None:
            self.out.append(self._encoder.usage(usage))
        self.out.append(self._encoder.end_answer())

    def _in_order(self) -> Sequence[ChoiceReader]:
        return [self.choices[index] for index in sorted(self.choices)]

    def _send(self, index: int, part: Part, logprobs: bytes) -> bool:
        if out := self._encoder.part(index, part, logprobs):
            self.out.append(out)
        return bool(out)

    def _break_off(self, error: UpstreamError) -> None:
        """Note that the upstream failed in mid-stream; what came before is for the client."""
        self.failure = error
        self._done = True
        self._forget_template()
        for choice in self.choices.values():
            choice.abandon()

    # a run of events that differ in their content only

    def _feed_run(self, events: Sequence[bytes], at: int) -> int:
        """Feed the content of the events from ``at`` on that match the template; return their number.

        Prose is fed at once. Where a marker may begin, and inside a call, each event is fed by itself, so that the client gets
        the arguments in the pieces in which they were written.
        """
        if self._template is None:
            return 0
        pieces = self._template.pieces(events[at:])
        choice, encoder = self.choices[0], self._encoder
        parser, begin, size, done = choice.parser, 0, len(pieces), 0
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
            if choice.read_text(text, passable=encoder.passes_text):
                run = b"\n\ndata: ".join(events[at + done : at + done + count])
                self.out.append(encoder.pass_on(0, b"data: " + run + b"\n\n"))
            done += count
            begin = end + 1
        return done

    def _learn_template(self, data: bytes | None, choice: Choice) -> None:
        """Learn the template from an event that holds only content."""
        content = choice.delta.get("content") if choice.delta is not None else None
        if data is not None and self._attempts_left and content and isinstance(content, str):
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
            raise _broken_off(data)
        try:
            chunk = decode_chunk(data)
        except ValueError:
            self._read_invalid(data)
            return
        if not chunk.choices and chunk.usage is None and _is_error(data):
            raise _broken_off(data)
        self._read_chunk(chunk, data)

    def _read_chunk(self, chunk: Chunk, data: bytes | None = None) -> None:
        if chunk.error is not None:
            raise _broken_off(encode({"error": chunk.error}) if data is None else data)
        if chunk.usage is not None:
            self.usage = chunk.usage
        if self.discard:
            return
        if self._others is not None and data is not None:
            self._collect(decode(data), self._others)
        if chunk.choices:
            if self._head is None:
                fields = chunk.id, chunk.created, chunk.model, chunk.system_fingerprint, chunk.service_tier
                self._begin(AnswerHead(*fields, completion=self._others, left_out=self._left_out))
            self._read_choices(data, chunk.choices)
        elif chunk.usage is not None:
            self._usage_apart = self._unasked_usage
        # Any other chunk without choices is dropped: clients that read choices[0] would fail.

    def _collect(self, chunk: Mapping[str, Any], others: dict[str, Any]) -> None:
        """Collect the fields of a chunk that are not read."""
        others |= {name: value for name, value in chunk.items() if name not in _CHUNK_FIELDS}
        for choice in chunk.get("choices") or ():
            known = others["choices"].setdefault(choice.get("index", 0), {})
            logprobs = merged_fields(known.get("logprobs"), choice.get("logprobs") or {})
            known |= {name: value for name, value in choice.items() if name not in _CHOICE_FIELDS} | {
                "logprobs": logprobs or None
            }

    def _begin(self, head: AnswerHead) -> None:
        self._head = head
        self._encoder.begin_answer(head)

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
        held = not self.choices or any(choice.hold for choice in self.choices.values())
        if held or not isinstance(value, dict) or value.get("error"):
            raise UpstreamError(f"The upstream sent an event that is no chunk: {error_message(data)}", body=excerpt(data))
        if self._encoder.passes_text:
            self.out.append(self._encoder.pass_on(0, sse_event(data)))

    def _read_choices(self, data: bytes | None, choices: Sequence[Choice]) -> None:
        """Read a chunk's choices: pass the chunk on unchanged, or send its parts."""
        # A chunk is passed on whole: it must have one choice, and not its end.
        untouched = passable = data is not None and len(choices) == 1 and choices[0].finish_reason is None
        for given in choices:
            choice = self._choice(given.index)
            if choice.closed:
                untouched = False
            elif given.message is not None:
                self._read_message(choice, given.message, given.finish_reason)
                untouched = False
            else:
                untouched = self._read_delta(choice, given, passable=passable) and untouched
                choice.ended = choice.ended or given.finish_reason is not None
        only = self._choice(choices[0].index)
        if untouched and data is not None:
            self.out.append(self._encoder.pass_on(only.index, sse_event(data)))
            only.note_passed_on()
        elif not self._encoder.passes_text:
            untouched = len(choices) == 1 and not (only.hold or only.ended)
        if untouched and self._count == 1 and not only.tentative:
            self._learn_template(data, choices[0])
        for given in choices:
            if given.finish_reason is not None:
                self._choice(given.index).close(given.finish_reason)
                self._forget_template()
                self.over = len(self.choices) >= self._count and all(choice.ended for choice in self.choices.values())

    def _choice(self, index: Any) -> ChoiceReader:
        """Return the reader of a choice, opened when its first chunk comes."""
        index = index if isinstance(index, int) else 0
        choice = self.choices.get(index)
        if choice is None:
            if len(self.choices) >= max(self._count, _MOST_CHOICES):
                raise UpstreamError(f"The upstream sent more than {_MOST_CHOICES} choices.")
            choice = self.choices[index] = self._open_choice(index, self._send)
        return choice

    def _read_delta(self, choice: ChoiceReader, given: Choice, *, passable: bool) -> bool:
        """Read a choice's delta. True if its chunk is to be passed on; otherwise all of its parts are sent."""
        delta, encoder = given.delta, self._encoder
        untouched = passable = passable and encoder.passes_text and choice.may_pass
        if delta is None:
            return untouched
        content, calls = delta.get("content"), delta.get("tool_calls")
        if (reasoning := delta.get("reasoning_content") or delta.get("reasoning")) and isinstance(reasoning, str):
            choice.raw_reasoning.append(reasoning)
        if content and calls:
            passable = untouched = False  # a chunk cannot be passed on in part
        if isinstance(content, str):
            untouched = choice.read_text(content, logprobs=bytes(given.logprobs), passable=passable) and untouched
        if calls and isinstance(calls, list):
            untouched = choice.read_native_calls(calls, passable=passable and encoder.passes_calls) and untouched
        if not untouched:
            self._send_others(choice, delta)
        if choice.hold and choice.has_call and self._admitted():
            choice.send_withheld()
        return untouched

    def _read_message(self, choice: ChoiceReader, message: Mapping[str, Any], finish: Any) -> None:
        """Read a whole message, and end its choice."""
        self._send_others(choice, message)
        if (reasoning := message.get("reasoning_content") or message.get("reasoning")) and isinstance(reasoning, str):
            choice.raw_reasoning.append(reasoning)
        if isinstance(content := message.get("content"), str):
            choice.read_text(content, passable=False, is_whole=True)
        if isinstance(calls := message.get("tool_calls"), list) and calls:
            choice.read_native_calls(calls)
        self._forget_template()
        choice.close(finish)
        if choice.hold and choice.has_call and self._admitted():
            choice.send_withheld()

    def _send_others(self, choice: ChoiceReader, message: Mapping[str, Any]) -> None:
        """Send the other fields of a message or a delta."""
        others = {key: value for key, value in message.items() if key not in _READ_FIELDS and value is not None}
        if isinstance(content := message.get("content"), list):
            others["content"] = content
        if others:
            choice.refused = choice.refused or "refusal" in others
            choice.send(OtherFields(others))


def _broken_off(data: bytes) -> UpstreamError:
    return UpstreamError(f"The upstream failed in mid-answer: {error_message(data)}", body=excerpt(data))


def _is_error(data: bytes) -> bool:
    """Whether an event without choices is an error in another form than OpenAI's."""
    value = decode(data)
    return isinstance(value, dict) and (value.get("object") == "error" or "detail" in value or "message" in value)
