"""The request of one attempt, adapted to what the upstream takes: tools, roles, ``tool_choice``, ``response_format``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from patchbay._text import one_line
from patchbay.constraints.backends import NO_CONSTRAINT, Constraint
from patchbay.errors import InvalidRequestError
from patchbay.models.capabilities import FormatUse, Mode, ModelCapabilities, ServerFacts
from patchbay.models.error_bodies import error_message
from patchbay.models.policy import Policy
from patchbay.models.refusals import (
    demands_stream,
    refused_fields,
    refuses_constraint,
    refuses_format,
    refuses_tool_choice,
    refuses_tools,
)
from patchbay.models.request import ChatCompletionBody
from patchbay.models.roles import Roles, fewer_roles
from patchbay.types import Message

_NO_CALL = Policy(forbidden=True)


def _unforced(why: str) -> InvalidRequestError:
    """Return the error of a request whose reply must be constrained and is not."""
    return InvalidRequestError(f"constrain=force: {why}. Use constrain=auto, or another server.", param="constrain")


class UpstreamRequestBuilder:
    """The request as it is sent next.

    ``format_only``: the answer is asked for alone, without tools and with the format enforced. ``streams``: a stream is asked
    for, by the client, or here (``collects``): a server notices that its client has left a stream, but not always for a whole
    answer. ``asks_usage``: a stream's usage is asked for here. ``retry_messages`` follow the client's: an answer that did not
    fit, and what is wrong with it.
    """

    def __init__(
        self, client_request: ChatCompletionBody, known: ModelCapabilities, mode: Mode, server: ServerFacts | None
    ) -> None:
        """``server``: None while it has not been asked what it is."""
        self.mode = mode
        self.constraint = NO_CONSTRAINT
        """What the last ``body`` adds to constrain the reply."""
        self._server = server
        self._is_forced = client_request.options.constrain == "force"
        self.format_only = False
        self.streams = self.collects = self.asks_usage = False
        self.retry_messages: list[Message] = []
        self.format = client_request.answer_format if client_request.count == 1 else None
        self._client_request = client_request
        self._known = known
        self._accepts = known.accepts
        self._learnt: dict[str, Any] = {}
        """The fields of ``_accepts`` that errors of the upstream have shown."""
        self._tools_refused = False
        self.left_out = client_request.leave_out(known.accepts.unsupported) if known.accepts.unsupported else frozenset()
        """Parameters of the client that the request does not have."""
        self._added: dict[str, Any] = {}

    @property
    def policy(self) -> Policy:
        """The calls that are allowed in the answer."""
        return _NO_CALL if self.format_only else self._client_request.policy

    @property
    def holds_format_back(self) -> bool:
        """Whether ``response_format`` is left out while tools may be called."""
        return self.mode == "text" or self._accepts.format_use is not FormatUse.BESIDE_TOOLS

    def body(self, *, wants_usage: bool = False) -> bytes:
        """Return the request's body; ``wants_usage``: with a stream's usage. Raises InvalidRequestError."""
        text = self.mode == "text"
        accepts = self._accepts
        roles = max(accepts.roles, Roles.SYSTEM_FIRST) if text else accepts.roles
        if self.format is not None and self._client_request.policy.forbidden and self.holds_format_back:
            self.format_only = True
        self._choose_fields(wants_usage=wants_usage)
        if self.format_only:
            in_words = accepts.format_use is FormatUse.NEVER
            return self._client_request.answer_alone_body(
                self.retry_messages, self._added, as_text=text, format_in_words=in_words, roles=roles
            )
        if text:
            return self._client_request.text_body(self.retry_messages, self._added, roles=roles)
        apart = self.format is not None and accepts.format_use is not FormatUse.BESIDE_TOOLS
        return self._client_request.native_body(
            self.retry_messages, self._added, tool_choice_in_words=accepts.tool_choice_in_words, format_apart=apart, roles=roles
        )

    def _choose_fields(self, *, wants_usage: bool) -> None:
        """Choose the fields beside the client's own, and whether to stream."""
        client, tools, accepts = self._client_request, self._client_request.request_tools, self._accepts
        assert tools is not None
        is_text, may_stream = self.mode == "text", "stream" not in accepts.not_added
        self.streams = client.stream or accepts.only_streams or (is_text and may_stream and self._known.streams_usage is True)
        self.collects = self.streams and not client.stream
        self.asks_usage = may_stream and (self.collects or (wants_usage and client.stream and not client.include_usage))
        self._added = {"stream": True} if self.collects else {}
        if is_text and not self.format_only and "stop" not in accepts.not_added and tools.stop and client.value("stop") is None:
            self._added["stop"] = [tools.stop]
        self.constraint = self._constrain()
        self._added |= self.constraint.fields
        if self.asks_usage:
            self._added["stream_options"] = {**(client.value("stream_options") or {}), "include_usage": True}

    @property
    def may_constrain(self) -> bool:
        """Whether the reply is constrained if the server can do that."""
        is_text = self.mode == "text" and not self.format_only
        return is_text and self._client_request.options.constrain != "off" and not self._client_request.constrained

    def _constrain(self) -> Constraint:
        """Return the constraint of the reply. Raises InvalidRequestError if there must be one and there is none."""
        server, made = self._server, NO_CONSTRAINT
        if server is None or (server.backend is None and not self._is_forced) or not self.may_constrain:
            has_own = self._client_request.constrained and self.mode == "text" and not self.format_only
            return replace(made, reason="the request has a constraint of its own") if has_own else made
        if server.backend is not None and not self._accepts.no_constraint:
            reasons = server.reasons is not False
            made = self._client_request.constraint(server.backend, reasons=reasons, opened=self._known.prefilled)
        if self._is_forced and not made.fields:
            refused = "the model's server refuses grammars"
            unknown = "the model's server is none that is known to take grammars"
            raise _unforced(made.reason or (refused if self._accepts.no_constraint else unknown))
        return made

    def use_text(self) -> None:
        """Put the tools into the prompt from now on."""
        self.mode = "text"
        self.retry_messages = []
        self._learnt.pop("tool_choice_in_words", None)  # it was about the tools

    def adapt(self, status: int, text: str, *, may_use_text: bool) -> str:
        """Leave out what the upstream's error refuses; return that in words, "" if the next request would be the same.

        Raises InvalidRequestError where a constraint is refused that must be there.
        """
        accepts = self._accepts
        if unsupported := self._client_request.unsupported(status, text):
            self._note(unsupported=accepts.unsupported | unsupported)
            self.left_out |= self._client_request.leave_out(unsupported)
            return f"the server refuses {' and '.join(sorted({name for name, _ in unsupported}))}"
        sends_format = self.format is not None and accepts.format_use is not FormatUse.NEVER
        is_native = self.mode == "native" and not self.format_only
        sends_tool_choice = is_native and self._client_request.restricts_calls and not accepts.tool_choice_in_words
        if (fewer := self._fewer_roles(status, text)) is not None:
            self._note(roles=fewer)
            change = "the server refuses a role of messages"
        elif not self.streams and demands_stream(status, text):
            self._note(only_streams=True)
            change = "the server answers only in a stream"
        elif sends_format and (self.format_only or not self.holds_format_back) and refuses_format(status, text):
            self._note(format_use=FormatUse.NEVER if self.format_only else FormatUse.ALONE)
            change = "the server refuses response_format"
        elif sends_tool_choice and refuses_tool_choice(status, text):
            self._note(tool_choice_in_words=True)
            change = "the server refuses tool_choice"
        elif is_native and may_use_text and self._client_request.constrained and refuses_format(status, text):
            self._note(constraint_alone=True)
            self.use_text()
            change = "the server refuses tools beside a grammar, so they are in the prompt"
        elif is_native and may_use_text and refuses_tools(status, text):
            # A model that is known to take tools refused something in this request only (a tool_choice, say).
            self._tools_refused = self._known.mode is None
            self.use_text()
            change = "the server refuses tools, so they are in the prompt"
        elif self.constraint.fields and refuses_constraint(status, text):
            if self._is_forced:
                raise _unforced(
                    f"the model's server refuses the grammar (HTTP {status}: {one_line(error_message(text.encode()), 300)})"
                )
            self._note(no_constraint=True)
            change = "the server refuses the grammar"
        elif refused := refused_fields(status, text, {name.removesuffix("_options") for name in self._added}):
            self._note(not_added=accepts.not_added | refused)
            change = f"the server refuses {' and '.join(sorted(refused))}"
        else:
            return ""
        return change

    def _note(self, **changes: Any) -> None:
        """Send the next request according to what the upstream's error has shown, to be learnt once that is accepted."""
        self._accepts = replace(self._accepts, **changes)
        self._learnt |= changes

    def _fewer_roles(self, status: int, text: str) -> Roles | None:
        """Return the roles of messages to try next, None if the upstream's error is not about them."""
        if self.mode != "text":
            return fewer_roles(status, text, self._client_request.messages, self._accepts.roles)
        contract = {"role": "system"}
        return fewer_roles(status, text, [*self._client_request.messages, contract], max(self._accepts.roles, Roles.SYSTEM_FIRST))

    def learn(self) -> None:
        """Record what the accepted request shows of the model's capabilities."""
        if self._tools_refused:
            self._known.learn_mode("text", "the server refused a request with tools")
            self._tools_refused = False
        if self._learnt:
            self._known.learn(self._learnt)
            self._learnt = {}

    def learn_usage_streams(self, completion: Mapping[str, Any] | None, usage: Any) -> None:
        """Record whether the server sends the usage in a stream. ``completion``: the answer, if it came as a document."""
        if self.asks_usage or (self._client_request.stream and self._client_request.include_usage):
            self._known.streams_usage = completion is None and isinstance(usage, Mapping)
        elif self._known.streams_usage is None and completion is not None and "timings" in completion:  # llama.cpp
            self._known.streams_usage = True
