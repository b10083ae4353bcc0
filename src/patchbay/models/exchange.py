"""One client request to chat completions, and all requests to the upstream that it takes. No I/O.

The proxy, the chat server, the wrapped client and the ChatModels drive the same object by its ``steps``. It retries if a server
refuses tools, a ``tool_choice`` or a role, if it is unclear whether the server dropped ``tools``, and if an answer breaks
``tool_choice``, the tools' schemas or JSON. The client gets one answer: the last, or the first if the second was only a check.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import partial
from typing import Any, Final, Generic, Literal, cast

from patchbay.errors import InvalidCallError, PatchbayError, ResponseFormatError, ToolChoiceError
from patchbay.formats.parser import random_call_id
from patchbay.formats.values.tool_names import make_rules
from patchbay.models.answer_reader import AnswerReader, read_completion
from patchbay.models.attempt import Attempt, AttemptLog
from patchbay.models.capabilities import Capabilities, Mode, ServerFacts
from patchbay.models.choice import ChoiceReader, Send, make_parser
from patchbay.models.encoder import AnswerEncoder, ChatEncoder, LegacyChatEncoder, Out, WholeEncoder
from patchbay.models.native_calls import NativeCalls
from patchbay.models.options import TextOptions
from patchbay.models.policy import (
    ChoiceOutcome,
    ask_for_answer,
    ask_for_arguments,
    ask_for_repair,
    ask_for_tool_choice,
    describe_invalid,
    schema_error_messages,
    sum_usage,
)
from patchbay.models.request import ChatCompletionBody
from patchbay.models.upstream_request import UpstreamRequestBuilder
from patchbay.models.wire import Chunk

_NO_TOOLS: Final = make_rules((), "text")


class Step(Enum):
    """The next step of an exchange's driver."""

    DESCRIBE = "describe"
    """Read the server's description (``AsyncUpstream.describe``); resume with it, decoded, or None."""
    SEND = "send"
    """Send ``Exchange.request``; resume with an UpstreamRejection, a whole answer (bytes, or decoded), or None for a stream."""
    RECEIVE = "receive"
    """Pass each piece of the stream to ``Exchange.feed`` and write the result, until it ends or the exchange is ``finished``."""


@dataclass(frozen=True)
class UpstreamRejection:
    """An error response of the upstream; ``error`` is raised if the exchange has no other request to try."""

    status: int
    text: str
    error: Exception


class Purpose(StrEnum):
    """The purpose of an attempt."""

    ANSWER = "answer"
    """The client gets its answer."""
    PROBE = "probe"
    """Unclear whether the server drops ``tools``: if the native answer has no call, the contract is tried."""
    CHECK = "check"
    """The contract, after a probe: the probe's answer is the client's unless this one has a call."""


class Verdict(Enum):
    """What becomes of an answer."""

    ACCEPTED = "accepted"
    """The client gets it."""
    AGAIN = "again"
    """The model is asked again."""
    FALLBACK = "fallback"
    """The client gets the probe's answer."""


class _CurrentAttempt(Generic[Out]):
    """The attempt that is made now. ``reader`` is None until its answer comes, ``verdict`` until that was judged."""

    def __init__(self, purpose: Purpose) -> None:
        self.purpose = purpose
        self.reader: AnswerReader[Out] | None = None
        self.verdict: Verdict | None = None
        self.fitting: str | None = None
        """The answer as JSON text in the requested format."""
        self.complaint = ""
        """Why the answer does not fit the format."""


class Exchange(Generic[Out]):
    """One request of a client until its answer ends. Raises InvalidRequestError for a body that cannot be served."""

    def __init__(
        self, body: bytes, options: TextOptions, capabilities: Capabilities, encoder: AnswerEncoder[Out] | None = None
    ) -> None:
        """``encoder`` writes the client's answer, by default as chat completions."""
        self._client_request = client_request = ChatCompletionBody(body, options, is_translated=encoder is not None)
        self._options = client_request.options
        self.model = client_request.model
        self.client_streams = client_request.stream
        self.transparent = client_request.request_tools is None
        """There are no tools: ``request`` is the client's body, and the answer is passed on byte for byte."""
        self.request = client_request.body
        self.finished = False
        """The rest of the upstream's stream is not needed."""
        self.complete = False
        """``steps`` has yielded the last bytes for the client."""
        self.fell_back = False
        """The last attempt failed, and the answer is an earlier one's."""
        self._own_encoder = encoder or cast("AnswerEncoder[Out]", LegacyChatEncoder() if client_request.legacy else ChatEncoder())
        self._encoder: AnswerEncoder[Out] = self._own_encoder
        self.attempt_log: AttemptLog | None = None
        self._logged: Attempt | None = None
        """The last attempt in the log."""
        self._attempt: _CurrentAttempt[Out] = _CurrentAttempt(Purpose.ANSWER)
        self._fallback: AnswerReader[Out] | None = None
        """The answer of a probe, while the contract is tried."""
        self._spent: list[Mapping[str, Any]] = []
        """The usage of the attempts before this one."""
        self._rounds = {"choice": 0, "repair": 0, "answer": 0}
        """How often the model was asked again, and for what."""
        self.reasons: list[str] = []
        """Why the model was asked again, in words."""
        self._is_learning = False
        """It is not known yet how the model takes tools: this request's outcome is recorded."""
        self._needs_description = False
        """This request depends on what the server says of itself."""
        self._offered = len(client_request.request_tools.names) if client_request.request_tools is not None else 0
        if not self.transparent:
            self._capabilities = capabilities
            self._begin(capabilities.server)

    def _begin(self, server: ServerFacts | None) -> None:
        """Begin with what is known of the model and its server. Raises InvalidRequestError."""
        self._known = self._capabilities.of(self._client_request.model)
        self._builder = UpstreamRequestBuilder(self._client_request, self._known, self._first_mode(), server)
        self._needs_description = server is None and (self._is_learning or self._builder.may_constrain)
        probes = self._is_learning and self._capabilities.doubts and self._known.probe_due
        self._begin_attempt(Purpose.PROBE if probes else Purpose.ANSWER)

    @property
    def upstream_streams(self) -> bool:
        """Whether ``request`` asks for a stream, which may be one of a whole answer."""
        return self.client_streams if self.transparent else self._builder.streams

    def _first_mode(self) -> Mode:
        tools, mode = self._client_request.request_tools, self._options.tools
        assert tools is not None
        if tools.specs == ():
            return "native"
        if mode == "text" or self._options.constrain == "force":
            return "text"
        if mode == "native" or tools.specs is None:
            return "native"
        self._is_learning = self._known.mode is None and not self._client_request.policy.forbidden
        if self._known.accepts.constraint_alone and self._client_request.constrained:
            self._is_learning = False
            return "text"
        return self._known.mode or "native"

    def _begin_attempt(self, purpose: Purpose) -> None:
        self.request = self._builder.body(wants_usage=purpose is Purpose.PROBE)
        self.finished = False
        self._attempt = _CurrentAttempt(purpose)
        if not self.client_streams:
            self._encoder = WholeEncoder(self._own_encoder)

    # the retry loop

    def steps(self) -> Generator[Step | Out, UpstreamRejection | bytes | Mapping[str, Any] | None, None]:
        """Yield what to do next: a Step, or what to write, after the last of which the exchange is ``complete``.

        Throw in what goes wrong in a step: it is raised again, unless an earlier attempt gave an answer.
        """
        if self._needs_description and self._capabilities.begin_description(needed=self._options.constrain == "force"):
            try:
                self._capabilities.learn_description((yield Step.DESCRIBE))
            finally:
                self._capabilities.end_description()
            self._begin(self._capabilities.server or ServerFacts())
        again = True
        while again:
            out = self._encoder.join(())
            if self.attempt_log is not None:
                self._log_attempt(self.attempt_log)
            try:
                response = yield Step.SEND
                if response is None:
                    yield Step.RECEIVE
                    out, again = self.end_attempt()
                elif not isinstance(response, UpstreamRejection):
                    out, again = self.read_whole(response)
                elif not self.on_upstream_error(response.status, response.text):
                    raise response.error  # noqa: TRY301  (there may be a fallback)
            except Exception:
                saved = self.fallback_response()
                if saved is None:
                    raise
                out, again, self.fell_back = saved, False, True
                self._supersede()
            self.complete = not again
            if out or self.complete:
                yield out

    def _log_attempt(self, log: AttemptLog) -> None:
        """Log the attempt that begins, and why it follows another."""
        upstream, now, before = self._builder, time.time(), self._logged
        if before is not None:
            before.ended = before.ended or now
            before.reason = self.reasons[-1] if self.reasons else ""
        constraint = upstream.constraint
        self._logged = Attempt(
            self.request,
            self._client_request.given,
            now,
            self._attempt.purpose,
            upstream.mode if self._offered else "",
            constraint.kind if constraint.fields else "",
            constraint.reason,
            self._offered,
            self._options,
        )
        log.add_attempt(self._logged)

    def _supersede(self) -> None:
        """Note that an earlier attempt gave the answer."""
        if self._logged is not None:
            self._logged.is_superseded = True

    def on_upstream_error(self, status: int, text: str) -> bool:
        """Handle an error status. True: send the next request, without the roles, format, ``tool_choice`` or tools refused."""
        if self._logged is not None:
            self._logged.status, self._logged.ended = status, time.time()
        if self.transparent:
            return False
        tools, upstream = self._client_request.request_tools, self._builder
        may_use_text = self._options.tools == "auto" and tools is not None and bool(tools.specs)
        if not (change := upstream.adapt(status, text, may_use_text=may_use_text)):
            return False
        self.reasons.append(f"HTTP {status}: {change}")
        probes = self._attempt.purpose is Purpose.PROBE and upstream.mode == "text"
        self._begin_attempt(Purpose.ANSWER if probes else self._attempt.purpose)
        return True

    def error_event(self, error: PatchbayError | str) -> Out:
        """Write an error as the last event of a stream; no ``[DONE]`` follows it."""
        return self._encoder.error(error)

    # the answer comes

    def feed(self, data: bytes | Chunk) -> Out:
        """Read a piece of the stream, bytes or a decoded chunk; return what to write. ``end_attempt`` raises its failure."""
        if self.transparent:
            return cast("Out", data)
        reader = self._attempt.reader or self._open_reader()
        if isinstance(data, Chunk):
            reader.read_chunk(data)
        elif reader.feed(data):
            return cast("Out", data)
        # The check whether the server dropped ``tools`` needs the usage, which follows the last choice.
        if reader.over and self._attempt.verdict is None and self._attempt.purpose is not Purpose.PROBE:
            try:
                self._judge(reader)
            except PatchbayError as error:
                reader.failure = error  # raised by ``end_attempt``, after all that came before
        if reader.failure is not None or (self._client_request.policy.single and reader.enough):
            self.finished = True
        return reader.pop_out()

    def read_whole(self, response: bytes | Mapping[str, Any]) -> tuple[Out, bool]:
        """Read a whole answer, its body or decoded; return what to write, and whether to ask again.

        Raises UpstreamError for an answer that cannot be read, and as ``end_attempt``.
        """
        if self.transparent:
            return cast("Out", response), False
        completion = read_completion(response)
        self._open_reader().read_whole(completion, response if isinstance(response, bytes) else None)
        return self.end_attempt()

    def end_attempt(self) -> tuple[Out, bool]:
        """End the upstream's answer; return the last to write, and whether to ask again.

        Raises UpstreamError, ToolChoiceError, ResponseFormatError, InvalidCallError.
        """
        if self.transparent:
            return self._encoder.join(()), False
        reader = self._attempt.reader or self._open_reader()
        if self._logged is not None:
            self._logged.ended = time.time()
        reader.close()
        self._builder.learn_usage_streams(reader.completion, reader.usage)
        if self._attempt.verdict is None:
            self._judge(reader)
        if self._attempt.verdict is Verdict.AGAIN:
            out = reader.pop_out()  # reasoning before an answer that does not fit
            self._spent.append(reader.usage if isinstance(reader.usage, Mapping) else {})
            self._begin_attempt(Purpose.CHECK if self._attempt.purpose is Purpose.PROBE else self._attempt.purpose)
            return out, True
        self._attempt.reader = None  # (it refers to this object: without the cycle both are freed at once)
        if self._attempt.verdict is Verdict.FALLBACK:
            self._supersede()
            return self._first_answer(reader.usage), False
        reader.write_end(self._total)
        return reader.pop_out(), False

    def _open_reader(self) -> AnswerReader[Out]:
        """Return the reader of the answer that begins to come."""
        self._builder.learn()
        reader = self._attempt.reader = AnswerReader(
            self._open_choice,
            self._on_call_admitted,
            self._encoder,
            count=self._client_request.count,
            include_usage=self._builder.collects or (self._client_request.stream and self._client_request.include_usage),
            unasked_usage=not self._builder.asks_usage,
            collects=self._builder.collects,
            left_out=self._builder.left_out,
        )
        if self._logged is not None:
            self._logged.reader, self._logged.first, self._logged.status = reader, time.time(), 200
        return reader

    def _open_choice(self, index: int, send: Send) -> ChoiceReader:
        upstream, policy = self._builder, self._builder.policy
        tools = self._client_request.request_tools
        assert tools is not None
        rules = tools.rules if not upstream.format_only else _NO_TOOLS
        is_questioned = self._attempt.purpose is not Purpose.ANSWER
        repairs = self._options.repair_rounds > self._rounds["repair"]
        keep: Literal["all", "prose"] | None = None
        if upstream.format is not None:
            keep = (
                "all"
                if upstream.format_only or upstream.holds_format_back or is_questioned or not self.client_streams
                else "prose"
            )
        is_tentative = not policy.free or is_questioned or repairs or keep is not None or bool(self._spent)
        # A whole text shows whether it begins in reasoning; a grammar that goes on from there leaves no doubt.
        is_opened = self._known.prefilled and (self.client_streams or upstream.constraint.kind == "grammar")
        if self._logged is not None:
            self._logged.prefilled = is_opened
        return ChoiceReader(
            index,
            partial(make_parser, rules, self._options, prefilled=is_opened),
            NativeCalls(rules, self._options.generate_id or random_call_id),
            policy,
            send,
            hold=policy.needed or is_questioned or repairs or (self._client_request.count > 1 and not policy.free),
            tentative=not self.client_streams or is_tentative,
            keep=keep,
            keeps_invalid=self._encoder.keeps_invalid,
        )

    def _on_call_admitted(self) -> bool:
        """Handle the begin of an allowed call. True once the call can no longer be retracted."""
        if not self.client_streams or self._client_request.count > 1 or self._options.repair_rounds > self._rounds["repair"]:
            return False
        self._settle_mode(called=True)
        return True

    def _settle_mode(self, *, called: bool) -> None:
        """Record whether this attempt showed how the model takes tools."""
        self._attempt.purpose = Purpose.ANSWER
        if not self._is_learning:
            return
        self._is_learning = False
        if called:
            ways = {"native": "it called a tool by itself", "text": "it wrote a call once its tools were in the prompt"}
            self._known.learn_mode(self._builder.mode, ways[self._builder.mode])
        else:
            self._known.open_answers += 1

    # the answer is judged

    def _judge(self, reader: AnswerReader[Out]) -> None:
        """Judge the finished choices: write their ends, or prepare the next attempt."""
        attempt = self._attempt
        attempt.verdict = self._verdict(reader)
        reader.discard = attempt.verdict is Verdict.AGAIN
        if attempt.verdict is Verdict.ACCEPTED:
            self._use_fitting(reader)
            reader.write_ends(self._total)
            if self.client_streams:
                self._note_reasoning(reader)

    def _verdict(self, reader: AnswerReader[Out]) -> Verdict:
        """Decide what becomes of an answer. Raises ToolChoiceError, ResponseFormatError, InvalidCallError."""
        outcomes = reader.outcomes()
        called = any(outcome.called for outcome in outcomes)
        if self._check_for_dropped_tools(outcomes, reader.usage):
            if called or self._check_format(outcomes):
                self._use_fitting(reader)
                self._fallback = reader
            self._builder.use_text()
            certainty = "may have dropped" if self._attempt.purpose is Purpose.PROBE else "dropped"
            self.reasons.append(f"no call, and the server {certainty} the tools: asked again with the tools in the prompt")
            return Verdict.AGAIN
        if (
            self._attempt.purpose is Purpose.CHECK
            and self._fallback is not None
            and not self._client_request.policy.needed
            and not called
        ):
            self._settle_mode(called=False)
            return Verdict.FALLBACK
        self._settle_mode(called=called)
        return Verdict.AGAIN if self._prepare_retry(outcomes) else Verdict.ACCEPTED

    def _check_for_dropped_tools(self, outcomes: Sequence[ChoiceOutcome], usage: Any) -> bool:
        """Whether the server may have dropped ``tools`` for this native answer, so that the contract is tried."""
        if self._attempt.purpose is not Purpose.PROBE or any(outcome.called or outcome.breaks_policy for outcome in outcomes):
            return False
        tokens = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        had_tools = self._client_request.had_tools(tokens) if isinstance(tokens, int) else None
        if had_tools is not None:
            why = f"the tokens of the prompt show that the server {'passed the tools on' if had_tools else 'dropped the tools'}"
            self._known.learn_mode("native" if had_tools else "text", why)
            self._is_learning = False
            self._attempt.purpose = Purpose.ANSWER
        return not had_tools

    def _prepare_retry(self, outcomes: Sequence[ChoiceOutcome]) -> bool:
        """Check the answer against the policy, the schemas and the format; prepare the next request where it fails.

        Raises ToolChoiceError, ResponseFormatError, InvalidCallError.
        """
        if self._builder.format_only:
            return self._prepare_answer_retry(outcomes)
        for outcome in outcomes:
            if self._prepare_call_retry(outcome, outcomes):
                return True
        tools = self._client_request.request_tools
        if self._options.repair_rounds > self._rounds["repair"] and tools is not None and tools.specs:
            for outcome in outcomes:
                if complaints := schema_error_messages(tools.specs, outcome.calls):
                    self._rounds["repair"] += 1
                    self.reasons.append("the arguments do not fit the schema: asked again")
                    self._builder.retry_messages += ask_for_repair(outcome, complaints)
                    return True
        return self._builder.format is not None and self._prepare_answer_retry(outcomes)

    def _prepare_call_retry(self, outcome: ChoiceOutcome, outcomes: Sequence[ChoiceOutcome]) -> bool:
        """Prepare to ask for a call that is allowed and valid. Raises ToolChoiceError, InvalidCallError."""
        policy = self._client_request.policy
        is_cut = outcome.cut or (outcome.at_limit and bool(self._builder.constraint.fields))  # (it was on its way to a call)
        is_missing = policy.needed and not outcome.calls and not is_cut
        is_wrong = outcome.breaks_policy and not outcome.calls and not outcome.prose
        if not (outcome.invalid or is_missing or is_wrong):
            return False
        asked = self._rounds["choice"]
        if asked >= self._options.choice_rounds or any(other.visible for other in outcomes):
            if outcome.invalid:
                raise InvalidCallError(describe_invalid(outcome.invalid[0], asked))
            raise ToolChoiceError(policy.error_message(asked))
        self._rounds["choice"] += 1
        self.reasons.append(f"{'invalid arguments' if outcome.invalid else 'tool_choice was not met'}: asked again")
        again = ask_for_arguments(outcome) if outcome.invalid else ask_for_tool_choice(outcome, policy.complaint())
        self._builder.retry_messages += again
        return True

    def _check_format(self, outcomes: Sequence[ChoiceOutcome]) -> bool:
        """Whether the answer fits ``response_format``.

        The schema is not checked where the server is known to enforce it beside tools. The text as the model wrote it comes
        first: its strings may have what a format reads as markup.
        """
        upstream, attempt = self._builder, self._attempt
        answer = outcomes[0].answer if outcomes else None
        if upstream.format is None or answer is None:
            return True
        checked = upstream.format_only or upstream.holds_format_back or self._is_learning
        attempt.fitting, _ = upstream.format.read(outcomes[0].text, check_schema=checked)
        if attempt.fitting is None:
            attempt.fitting, attempt.complaint = upstream.format.read(answer, check_schema=checked, alone=upstream.format_only)
        return attempt.fitting is not None

    def _prepare_answer_retry(self, outcomes: Sequence[ChoiceOutcome]) -> bool:
        """Prepare to ask for the answer alone if this one does not fit. Raises ResponseFormatError."""
        upstream = self._builder
        if any(outcome.called for outcome in outcomes) or self._check_format(outcomes):
            return False
        assert upstream.format is not None
        complaint = self._attempt.complaint if upstream.format_only else ""
        if upstream.format_only:
            asked = self._rounds["answer"]
            if asked >= self._options.choice_rounds:
                raise ResponseFormatError(
                    f"The model's answer does not fit response_format (asked {asked + 1} times): {complaint}."
                )
            self._rounds["answer"] += 1
        self.reasons.append("the answer does not fit response_format: asked again")
        upstream.format_only = True
        upstream.retry_messages += ask_for_answer(outcomes[0], upstream.format.demand(complaint))
        return True

    def _use_fitting(self, reader: AnswerReader[Out]) -> None:
        """Replace the content by the JSON text that fits the format."""
        if self._attempt.fitting is not None:
            reader.choices[min(reader.choices)].kept = [self._attempt.fitting]

    def _note_reasoning(self, reader: AnswerReader[Out]) -> None:
        """Record whether the model's prompt opens its reasoning."""
        for choice in reader.choices.values():
            if choice.was_reasoning or not choice.parser.prefilled or choice.answered_unopened:
                self._known.note_reasoning(unopened=choice.was_reasoning)

    # the answer of an earlier attempt

    def fallback_response(self) -> Out | None:
        """Write the answer of the probe after a failed check; None if there is none, or if the client has seen another."""
        if self._fallback is None or self._client_request.policy.needed:
            return None
        reader = self._attempt.reader
        if reader is not None and any(choice.visible for choice in reader.choices.values()):
            return None
        return self._first_answer(None if reader is None else reader.usage)

    def _first_answer(self, usage: Any) -> Out:
        """Write the answer of the probe, with the usage of all attempts."""
        fallback, self._fallback = self._fallback, None
        assert fallback is not None
        total = self._total(usage)
        fallback.write_ends(lambda _: total)
        fallback.write_end(lambda _: total)
        return fallback.pop_out()

    def _total(self, usage: Any) -> Any:
        """Add the usage of earlier attempts to this one's."""
        if not self._spent:
            return usage
        return sum_usage([*self._spent, usage] if isinstance(usage, Mapping) else self._spent)

    # what came of it

    @property
    def mode(self) -> Literal[""] | Mode:
        """How the model gets its tools; "" without tools."""
        if not self._offered:
            return ""
        return "native" if self.fell_back or self._attempt.verdict is Verdict.FALLBACK else self._builder.mode

    @property
    def constraint(self) -> Literal["", "grammar", "schema"]:
        """What constrained the last answer of a text model."""
        return self._builder.constraint.kind if self.mode == "text" else ""
