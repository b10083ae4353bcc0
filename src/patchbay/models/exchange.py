"""One client request to chat completions, and all requests to the upstream that it takes. Bytes in, bytes out, no I/O.

The proxy, the chat server, the wrapped client and the Gemini model drive the same object by its ``steps``. It retries if a
server refuses tools, a ``tool_choice`` or a role, if it is unclear whether the server dropped ``tools``, and if an answer breaks
``tool_choice`` or the tools' schemas. The client gets one answer: the last, or the first if the second was only a check.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import is_not
from typing import Any, Final, Literal

from patchbay.errors import PatchbayError, ResponseFormatError, ToolChoiceError
from patchbay.formats.events import CallEnd, TextDelta, TextWasReasoning
from patchbay.formats.parser import StreamParser
from patchbay.formats.values.tool_names import make_rules
from patchbay.models.capabilities import (
    Capabilities,
    FormatUse,
    Roles,
    fewer_roles,
    refuses_choice,
    refuses_tools,
    tools_were_seen,
)
from patchbay.models.choice_stream import ChoiceStream
from patchbay.models.completion import read_choice, read_completion, without_prose
from patchbay.models.encoder import AnswerEncoder, ChatEncoder, LegacyChatEncoder
from patchbay.models.options import TextOptions
from patchbay.models.policy import (
    Outcome,
    Policy,
    ask_for_answer,
    ask_for_choice,
    ask_for_repair,
    refuses_format,
    schema_error_messages,
    sum_usage,
)
from patchbay.models.request import ChatCompletionBody, RequestTools
from patchbay.models.stream import StreamedAnswer
from patchbay.types import Message, Reply

_NO_CONTENT: Final = Reply(None)
_NO_CALL = Policy(forbidden=True)
_NO_TOOLS = make_rules((), "text")


class Step(Enum):
    """The next step of an exchange's driver."""

    SEND = "send"
    """Send ``Exchange.request``; resume with a Rejection, the body of a whole answer, or None if a stream follows."""
    RECEIVE = "receive"
    """Pass each piece of the stream to ``Exchange.feed`` and write the result, until it ends or the exchange is ``finished``."""


@dataclass(frozen=True)
class Rejection:
    """An error response of the upstream; ``error`` is raised if the exchange has no other request to try."""

    status: int
    text: str
    error: Exception


class Exchange:
    """See the module. Raises InvalidRequestError for a body that cannot be served."""

    def __init__(
        self, body: bytes, options: TextOptions, capabilities: Capabilities, encoder: AnswerEncoder | None = None
    ) -> None:
        """``encoder`` writes the client's answer, by default as chat completions."""
        self._call = ChatCompletionBody(body, options, always_read=encoder is not None)
        self._options = options
        self._capabilities = capabilities
        self.streaming = self._call.stream
        self.transparent = self._call.request_tools is None
        """There are no tools: ``request`` is the client's body, and the answer is passed on byte for byte."""
        self.request = body
        self._extra: list[Message] = []
        self._choice_rounds = 0
        self._repair_rounds = 0
        self._spent: list[Mapping[str, Any]] = []
        self._fallback: StreamedAnswer | dict[str, Any] | None = None
        """A native answer without a call, kept while the model is asked once more with the contract."""
        self._checking = False
        """Unclear whether the server dropped ``tools``: the fallback is the client's answer unless the next attempt has a
        call."""
        self._use_fallback = False
        self._learn_text = False
        self._probe = False
        """If this native answer has no call, the contract is tried."""
        self._learning = False
        """It is not known yet how the model takes tools: this request's outcome is recorded."""
        self._kind: Literal["native", "text"] = "native"
        self._again = False
        self._judged = False
        self.finished = False
        """The rest of the upstream's stream is not needed."""
        self.complete = False
        """``steps`` has yielded the last bytes for the client."""
        self.fell_back = False
        """The last attempt failed, and the answer is an earlier one's."""
        self._usage: Any = None
        self._stream: StreamedAnswer | None = None
        self._encoder: AnswerEncoder = encoder or (LegacyChatEncoder() if self._call.legacy else ChatEncoder())
        if not self.transparent:
            self._known = capabilities.of(self._call.model)
            self._choice_in_words = self._known.choice_in_words
            """The server takes no ``tool_choice``."""
            self._roles = self._known.roles
            self._format = self._call.answer_format if self._call.count == 1 else None
            self._format_use = self._known.format_use if self._format is not None else FormatUse.BESIDE_TOOLS
            self._answering = False
            """Only the answer is asked for, with the format enforced; no call is allowed."""
            self._answer_rounds = 0
            self._include_usage = self.streaming and self._call.include_usage
            self._kind = self._first_kind()
            self._begin_attempt()

    def _first_kind(self) -> Literal["native", "text"]:
        tools, mode = self._call.request_tools, self._options.tools
        assert tools is not None
        if tools.specs == ():
            return "native"
        if mode == "text":
            return "text"
        if mode == "native" or tools.specs is None:
            return "native"
        if self._known.mode is not None:
            return self._known.mode
        self._learning = not self._call.policy.forbidden
        self._probe = self._learning and self._capabilities.doubts and self._known.probe_due
        return "native"

    def _begin_attempt(self) -> None:
        """Set up the next attempt."""
        text = self._kind == "text"
        roles = max(self._roles, Roles.SYSTEM_FIRST) if text else self._roles
        if self._format is not None and self._call.policy.forbidden and self._holds_format_back:
            self._answering = True
        if self._answering:
            in_words = self._format_use is FormatUse.NEVER
            self.request = self._call.answer_alone(self._extra, as_text=text, format_in_words=in_words, roles=roles)
        elif text:
            self.request = self._call.text(self._extra, roles=roles)
        else:
            apart = self._format_use is not FormatUse.BESIDE_TOOLS
            self.request = self._call.native(self._extra, choice_in_words=self._choice_in_words, format_apart=apart, roles=roles)
        self._again = False
        self._judged = False
        self.finished = False
        self._usage = None
        self._stream = None
        self._fitting: str | None = None
        """The answer as JSON text in the requested format."""
        self._complaint = ""

    @property
    def _holds_format_back(self) -> bool:
        """Whether ``response_format`` is left out while tools may be called."""
        return self._kind == "text" or self._format_use is not FormatUse.BESIDE_TOOLS

    @property
    def _policy(self) -> Policy:
        """The policy of this attempt."""
        return _NO_CALL if self._answering else self._call.policy

    # the retry loop

    def steps(self) -> Generator[Step | bytes, Rejection | bytes | None, None]:
        """Yield what to do next: a Step, or bytes to write, after the last of which the exchange is ``complete``.

        Throw in what goes wrong in a step: it is raised again, unless an earlier attempt gave an answer.
        """
        again = True
        while again:
            out = b""
            try:
                response = yield Step.SEND
                if response is None:
                    yield Step.RECEIVE
                    out, again = self.end()
                elif isinstance(response, bytes):
                    out, again = self.answer(response)
                elif not self.on_upstream_error(response.status, response.text):
                    raise response.error  # noqa: TRY301  (there may be a fallback)
            except Exception:
                saved = self.fallback_response()
                if saved is None:
                    raise
                out, again, self.fell_back = saved, False, True
            self.complete = not again
            if out or self.complete:
                yield out

    # the answer is an error

    def on_upstream_error(self, status: int, text: str) -> bool:
        """Handle an error status. True: send the next request, without the roles, format, ``tool_choice`` or tools refused."""
        tools = self._call.request_tools
        if tools is None or not self._adapt(tools, status, text):
            return False
        self._begin_attempt()
        return True

    def _adapt(self, tools: RequestTools, status: int, text: str) -> bool:
        """Note what the upstream's error refuses; False if the next request would be the same."""
        sends_format = self._format is not None and self._format_use is not FormatUse.NEVER
        if (fewer := self._fewer_roles(status, text)) is not None:
            self._roles = fewer
        elif sends_format and (self._answering or not self._holds_format_back) and refuses_format(status, text):
            self._format_use = FormatUse.NEVER if self._answering else FormatUse.ALONE
        elif self._kind == "text" or self._answering:
            return False
        elif self._call.chooses and not self._choice_in_words and refuses_choice(status, text):
            self._choice_in_words = True
        elif self._options.tools == "auto" and tools.specs and refuses_tools(status, text):
            # A model that is known to take tools refused something in this request only (a tool_choice, say).
            self._learn_text = self._known.mode is None
            self._probe = False
            self._kind = "text"
            self._extra = []
        else:
            return False
        return True

    def _fewer_roles(self, status: int, text: str) -> Roles | None:
        """Return the roles of messages to try next, None if the upstream's error is not about them."""
        if self._kind != "text":
            return fewer_roles(status, text, self._call.messages, self._roles)
        contract = {"role": "system"}
        return fewer_roles(status, text, [*self._call.messages, contract], max(self._roles, Roles.SYSTEM_FIRST))

    def fallback_response(self) -> bytes | None:
        """Return the kept answer of an earlier attempt after a failed one, or None."""
        visible = self._stream is not None and any(state.visible for state in self._stream.choices.values())
        if self._fallback is None or visible or self._call.policy.needed:
            return None
        return self._first_answer()

    def _first_answer(self) -> bytes:
        """Write the answer that was kept, with the usage of all attempts."""
        fallback, self._fallback = self._fallback, None
        usage = self._total(self._usage)
        if isinstance(fallback, dict):
            return self._encoder.whole(fallback if usage is None else {**fallback, "usage": usage})
        assert fallback is not None
        fallback.write_ends(lambda _: usage)
        fallback.write_end(lambda _: usage)
        return fallback.pop_out()

    def error_event(self, error: PatchbayError | str) -> bytes:
        """Write an error as the last event of a stream; no ``[DONE]`` follows it."""
        return self._encoder.error(error)

    # the answer is a stream

    def feed(self, data: bytes) -> bytes:
        """Read bytes of the upstream's stream; return bytes for the client. Raises UpstreamError, ToolChoiceError."""
        if self.transparent:
            return data
        stream = self._stream or self._attempt()
        if stream.feed(data):
            return data
        # The check whether the server dropped ``tools`` needs the usage, which follows the last choice.
        if stream.over and not self._judged and not self._probe:
            self._judge_stream(stream)
        elif self._call.policy.single and stream.enough:
            self.finished = True
        return stream.pop_out() if stream.out else b""

    def end(self) -> tuple[bytes, bool]:
        """End the upstream's stream; return the last bytes for the client, and whether to ask again. Raises as ``feed``."""
        if self.transparent:
            return b"", False
        stream = self._attempt()
        stream.close()
        if not self._judged:
            self._judge_stream(stream)
        self._usage = stream.usage
        if self._again:
            out = stream.pop_out()  # reasoning before an answer that does not fit
            self._begin_next()
            return out, True
        self._stream = None  # (it refers to this object: without the cycle both are freed at once)
        if self._use_fallback:
            return self._first_answer(), False
        stream.write_end(self._total)
        return stream.pop_out(), False

    def _attempt(self) -> StreamedAnswer:
        """Return the reader of the current stream."""
        if self._stream is None:
            self._learn_from_success()
            self._stream = StreamedAnswer(
                self._open,
                self._admitted,
                self._encoder,
                count=self._call.count,
                include_usage=self._include_usage,
            )
        return self._stream

    def _learn_from_success(self) -> None:
        """Record what the accepted request shows of the model's capabilities."""
        if self._learn_text:
            self._known.learn_mode("text")
            self._learn_text = False
        if self._format_use is not FormatUse.BESIDE_TOOLS:
            self._known.learn_format_use(self._format_use)
        if self._roles is not Roles.ALL:
            self._known.learn_roles(self._roles)
        if self._choice_in_words and self._kind == "native":
            self._known.learn_choice_in_words()

    def _open(self, index: int, send: Callable[[bytes], None]) -> ChoiceStream:
        policy = self._policy
        repair = self._options.repair_rounds > self._repair_rounds
        questioned = self._probe or self._checking
        keep: Literal["all", "prose"] | None = None
        if self._format is not None:
            keep = "all" if self._answering or self._holds_format_back or questioned else "prose"
        return ChoiceStream(
            index,
            self._parser(prefilled=self._known.prefilled or None),
            policy,
            self._encoder,
            send,
            hold=policy.needed or questioned or repair or (self._call.count > 1 and not policy.free),
            tentative=not policy.free or questioned or repair or keep is not None,
            keep=keep,
        )

    def _parser(self, *, prefilled: bool | None) -> StreamParser:
        options, tools = self._options, self._call.request_tools
        assert tools is not None
        return StreamParser(
            tools.rules if not self._answering else _NO_TOOLS,
            format=options.format,
            tool_call_tag=options.tool_call_tag,
            lenient_fences=options.lenient_fences,
            reasoning=options.reasoning,
            reasoning_tag=options.reasoning_tag,
            reasoning_prefilled=prefilled,
            unknown_tools=options.unknown_tools,
            xml_tools=options.xml_tools,
            generate_id=options.generate_id,
        )

    def _reply(self, content: Any) -> Reply:
        """Parse a whole content; if only one call is allowed, up to its end, as in a stream."""
        if not content:
            return _NO_CONTENT
        parser = self._parser(prefilled=None)
        events = parser.close(content if isinstance(content, str) else "")
        reply = parser.reply
        policy = self._policy
        if not policy.single or len(reply.tool_calls) + len(reply.incomplete) == 0:
            return reply
        prose = []
        for event in events:
            if type(event) is TextDelta:
                prose.append(event.text)
            elif type(event) is TextWasReasoning:
                prose.clear()
            elif type(event) is CallEnd and policy.admits(event.call.name):
                return replace(reply, content="".join(prose) or None)
        return reply

    def _admitted(self) -> bool:
        """Handle the begin of an allowed call. True once the call can no longer be retracted."""
        if self._call.count > 1 or self._options.repair_rounds > self._repair_rounds:
            return False
        self._settle_mode(called=True)
        return True

    def _settle_mode(self, *, called: bool) -> None:
        """Record whether this attempt showed how the model takes tools."""
        self._probe = False
        self._checking = False
        if not self._learning:
            return
        if called:
            self._known.learn_mode(self._kind)
        else:
            self._known.count_open_answer()
        self._learning = False

    def _judge_stream(self, stream: StreamedAnswer) -> None:
        """Judge the finished choices: write their ends, or prepare the next attempt."""
        self._judged = True
        self._usage = stream.usage
        if self._accepts(stream.outcomes(), stream):
            stream.write_ends(self._total)
            self._note_reasoning(stream)
        stream.discard = self._again

    def _note_reasoning(self, stream: StreamedAnswer) -> None:
        """Record whether the model's prompt opens its reasoning."""
        for state in stream.choices.values():
            if state.was_reasoning or not state.parser.prefilled or state.answered_unopened:
                self._known.note_reasoning(unopened=state.was_reasoning)

    # the answer is one JSON

    def answer(self, body: bytes) -> tuple[bytes, bool]:
        """Read a whole answer; return bytes for the client (events, if it asked for a stream), and whether to ask again.

        Raises UpstreamError for an answer that cannot be read, ToolChoiceError for one that breaks ``tool_choice``.
        """
        if self.transparent:
            return body, False
        self._learn_from_success()
        completion = read_completion(body)
        if self.streaming:
            self._attempt().write_whole(completion)
            return self.end()
        self._usage = completion.get("usage")
        reads = [
            read_choice(choice, self._reply(choice["message"].get("content")), self._policy) for choice in completion["choices"]
        ]
        if self._format is not None:
            reads = [without_prose(outcome, choice) for outcome, choice in reads]
        outcomes = [outcome for outcome, _ in reads]
        changed = {**completion, "choices": [choice for _, choice in reads]}
        accepted = self._accepts(outcomes, changed)
        if self._again:
            self._begin_next()
            return b"", True
        if not accepted:
            return self._first_answer(), False
        if self._spent:
            changed["usage"] = self._total(self._usage)
        elif self._passes(outcomes) and not any(map(is_not, changed["choices"], completion["choices"])):
            return body, False
        return self._encoder.whole(changed), False

    def _passes(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether the client can read this whole answer as the upstream wrote it."""
        encoder = self._encoder
        return encoder.passes_text and (encoder.passes_calls or not any(outcome.called for outcome in outcomes))

    # the answer is judged

    def _accepts(self, outcomes: Sequence[Outcome], answer: StreamedAnswer | dict[str, Any]) -> bool:
        """Decide whether the client gets this answer, the fallback (``_use_fallback``) or the next one (``_again``).

        Raises ToolChoiceError, ResponseFormatError.
        """
        if self._may_have_dropped_tools(outcomes):
            if self._fits(outcomes):
                self._set_content(answer)
                self._fallback = answer
            self._ask_as_text()
            return False
        if self._keeps_fallback(outcomes):
            self._use_fallback = True
            return False
        self._settle_mode(called=any(outcome.called for outcome in outcomes))
        if self._must_ask_again(outcomes):
            return False
        self._set_content(answer)
        return True

    def _set_content(self, answer: StreamedAnswer | dict[str, Any]) -> None:
        """Replace the content by the JSON text that fits the format; a completion's list of choices is a copy already."""
        if self._fitting is None:
            return
        if isinstance(answer, StreamedAnswer):
            answer.choices[min(answer.choices)].kept = [self._fitting]
            return
        choice = answer["choices"][0]
        if choice["message"].get("content") != self._fitting:
            answer["choices"][0] = {**choice, "message": {**choice["message"], "content": self._fitting}}

    def _may_have_dropped_tools(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether the server may have dropped ``tools`` for this native answer, so that the contract is tried."""
        if not self._probe or any(outcome.calls or outcome.cut or outcome.broken for outcome in outcomes):
            return False
        size, plain = self._call.prompt_chars()
        tokens = self._usage.get("prompt_tokens") if isinstance(self._usage, Mapping) else None
        count = tokens if isinstance(tokens, int) else None
        if plain and tools_were_seen(count, message_chars=size, messages=len(self._call.messages)):
            self._known.learn_mode("native")
            self._probe = self._learning = False
            return False
        return True

    def _keeps_fallback(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether the fallback is used, because the contract brought no call either."""
        if (
            not self._checking
            or self._fallback is None
            or self._call.policy.needed
            or any(outcome.called for outcome in outcomes)
        ):
            return False
        self._settle_mode(called=False)
        return True

    def _ask_as_text(self) -> None:
        """Prepare an attempt with the contract."""
        self._probe = False
        self._kind = "text"
        self._extra = []
        self._again = True
        self._checking = True

    def _must_ask_again(self, outcomes: Sequence[Outcome]) -> bool:
        """Check the answer against the policy, the schemas and the format; prepare the next attempt where it fails.

        Raises ToolChoiceError, ResponseFormatError.
        """
        if self._answering:
            return self._must_ask_for_answer(outcomes)
        policy = self._call.policy
        for outcome in outcomes:
            missing = policy.needed and not outcome.calls and not outcome.cut
            wrong = outcome.broken and not outcome.calls and not outcome.prose
            if not missing and not wrong:
                continue
            if self._choice_rounds >= self._options.choice_rounds or any(other.visible for other in outcomes):
                raise ToolChoiceError(policy.outcome(self._choice_rounds))
            self._choice_rounds += 1
            self._extra += ask_for_choice(outcome, policy.complaint())
            self._again = True
            return True
        tools = self._call.request_tools
        if self._options.repair_rounds > self._repair_rounds and tools is not None and tools.specs:
            for outcome in outcomes:
                complaints = schema_error_messages(tools.specs, outcome.calls)
                if complaints:
                    self._repair_rounds += 1
                    self._extra += ask_for_repair(outcome, complaints)
                    self._again = True
                    return True
        return self._format is not None and self._must_ask_for_answer(outcomes)

    def _fits(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether the answer fits ``response_format``.

        The schema is not checked where the server is known to enforce it beside tools.
        """
        answer = outcomes[0].answer if outcomes else None
        if self._format is None or answer is None:
            return True
        checked = self._answering or self._holds_format_back or self._learning
        self._fitting, self._complaint = self._format.read(answer, check_schema=checked, alone=self._answering)
        return self._fitting is not None

    def _must_ask_for_answer(self, outcomes: Sequence[Outcome]) -> bool:
        """Prepare to ask for the answer alone if this one does not fit. Raises ResponseFormatError."""
        if any(outcome.called for outcome in outcomes) or self._fits(outcomes):
            return False
        assert self._format is not None
        complaint = self._complaint if self._answering else ""
        if self._answering:
            if self._answer_rounds >= self._options.choice_rounds:
                raise ResponseFormatError(
                    f"The model's answer does not fit response_format (asked {self._answer_rounds + 1} times): {complaint}."
                )
            self._answer_rounds += 1
        self._answering = True
        self._extra += ask_for_answer(outcomes[0], self._format.demand(complaint))
        self._again = True
        return True

    def _begin_next(self) -> None:
        """Begin the prepared attempt; this one's usage is added to the client's."""
        self._spent.append(self._usage if isinstance(self._usage, Mapping) else {})
        self._begin_attempt()

    def _total(self, usage: Any) -> Any:
        """Add the usage of earlier attempts to this one's."""
        if not self._spent:
            return usage
        return sum_usage([*self._spent, usage] if isinstance(usage, Mapping) else self._spent)
