"""The client's request: checked, and turned into what the upstream is asked, native or with the contract.

Reading the same tools again costs a look-up, so the contract's bytes are the same in every turn, and it is rendered for text
models alone. What can be read of a body
without its tools stands in ``body``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from patchbay.cache import SizedCache
from patchbay.errors import InvalidRequestError
from patchbay.formats.contract import render_contract, render_tool_choice
from patchbay.formats.spec import Format
from patchbay.formats.values.tool_names import ToolRules, make_rules
from patchbay.models.answerformat import AnswerFormat, read_answer_format
from patchbay.models.body import ChatBody, has_foreign_kind
from patchbay.models.choice import Policy, read_policy
from patchbay.models.options import TextOptions
from patchbay.models.roles import Roles, leading_instructions, with_roles
from patchbay.models.wire import decode, encode
from patchbay.transcript import flatten_messages, text_of
from patchbay.types import Message, ToolSpec, read_specs

_TOOL_FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "messages"})


@dataclass(frozen=True)
class Offer:
    """The tools of a request. ``specs`` is None where one of them is of a kind that a text model cannot be taught."""

    specs: tuple[ToolSpec, ...] | None
    names: frozenset[str]
    rules: ToolRules
    options: TextOptions
    how: str | Format
    problem: InvalidRequestError | None = None

    @cached_property
    def contract(self) -> str:
        """What a text model is told of the tools. Rendered when it is first needed: a native model is never told."""
        options = self.options
        return render_contract(
            self.specs or (),
            format=self.how,
            tool_call_tag=options.tool_call_tag,
            tool_result_tag=options.tool_result_tag,
            include_examples=options.include_examples,
            template=options.template,
        )


def _read_offer(raw: bytes, options: TextOptions, how: str | Format, *, legacy: bool) -> Offer:
    tools = decode(raw)
    if legacy:
        if not isinstance(tools, list):
            raise InvalidRequestError("'functions' must be an array.", param="functions")
        tools = [{"type": "function", "function": function} for function in tools]
    try:
        specs = read_specs(tools, param="functions" if legacy else "tools")
    except InvalidRequestError as error:
        if not has_foreign_kind(tools):
            raise
        return Offer(None, _function_names(tools), make_rules(None, "text"), options, how, error)
    return Offer(specs, frozenset(spec.name for spec in specs), make_rules(specs, options.unknown_tools), options, how)


_offers: SizedCache[tuple[bytes, TextOptions, str | Format, bool], Offer] = SizedCache(most=64, most_bytes=16 * 1024 * 1024)
"""The tools that were read last, by their bytes, and what was made of them."""


def _offer(raw: bytes, options: TextOptions, how: str | Format, *, legacy: bool) -> Offer:
    """Return the tools, told in the format ``how``; the same ones are read once. Raises InvalidRequestError."""
    key = (raw, options, how, legacy)
    if (offer := _offers.get(key)) is None:
        offer = _read_offer(raw, options, how, legacy=legacy)
        _offers.put(key, offer, len(raw))
    return offer


def _function_names(tools: list[Any]) -> frozenset[str]:
    found = (tool.get("function") for tool in tools if isinstance(tool, Mapping))
    return frozenset(f["name"] for f in found if isinstance(f, Mapping) and isinstance(f.get("name"), str))


class ChatRequest(ChatBody):
    """A body of ``POST /chat/completions`` with its tools read. Raises InvalidRequestError for what no upstream could serve."""

    def __init__(self, body: bytes, options: TextOptions) -> None:
        super().__init__(body)
        self._options = options
        self._how = options.prompt_format(self.model)
        self.offer: Offer | None = None
        self.policy = Policy()
        raw = self.tools
        if raw is not None:
            self.offer = _offer(bytes(raw), options, self._how, legacy=self.legacy)
            if not self.offer.names and self.offer.specs is not None:
                self.offer = None
        self.answer_format: AnswerFormat | None = None
        """What ``response_format`` asks for, where there are tools beside it."""
        if self.offer is not None:
            if "response_format" in self.fields:
                self.answer_format = read_answer_format(bytes(self.fields["response_format"]))
            self._tool_choice = self._read_tool_choice()
            if self.offer.specs is not None:
                parallel = self.value("parallel_tool_calls") if not self.legacy else False
                self.policy = read_policy(self._tool_choice, parallel, self.offer.names)

    def _read_tool_choice(self) -> Any:
        if not self.legacy:
            return self.value("tool_choice")
        choice = self.value("function_call")
        return {"type": "function", "function": choice} if isinstance(choice, Mapping) else choice

    def prompt_chars(self) -> tuple[int, bool]:
        """How many characters of text the messages hold, and whether they hold nothing else."""
        size, plain = 0, True
        for message in self.messages:
            content = message.get("content")
            size += len(text_of(content))
            plain = plain and (content is None or isinstance(content, str))
        return size, plain

    def native(
        self, extra: list[Message], *, choice_in_words: bool = False, format_apart: bool = False, roles: Roles = Roles.ALL
    ) -> bytes:
        """The body as the client sent it, with ``extra`` messages behind it.

        ``choice_in_words``: the server takes no ``tool_choice``, so it is left out and said to the model.
        ``format_apart``: it takes no ``response_format`` beside tools, so that is left out and said to the model.
        """
        in_words = choice_in_words and self.chooses
        apart = format_apart and self.answer_format is not None
        if not (extra or in_words or apart or roles is not Roles.ALL):
            self.check_messages()
            return self.body
        view = [*self.messages]
        if apart and self.answer_format is not None and not self.policy.needed:
            _add_instruction(view, self.answer_format.instruction)
        view = with_roles(view, roles)
        left_out: set[str] = {"response_format"} if apart else set()
        if in_words:
            _demand(view, render_tool_choice(self._tool_choice, parallel=not self.policy.single))
            left_out |= {"tool_choice", "function_call"}
        fields = {name: raw for name, raw in self.fields.items() if name not in left_out}
        return encode({**fields, "messages": [*view, *extra]})

    def answer_alone(self, extra: list[Message], *, as_text: bool, format_in_words: bool, roles: Roles) -> bytes:
        """The body that asks for the answer as ``response_format`` has it, where no tool can be called.

        ``as_text``: the model only knows text. ``format_in_words``: the server takes no ``response_format`` at all.
        """
        assert self.answer_format is not None
        view = with_roles(self._flat() if as_text else self.messages, roles)
        if not extra:
            _demand(view, self.answer_format.demand())
        body: dict[str, Any] = {name: raw for name, raw in self.fields.items() if name not in _TOOL_FIELDS}
        if format_in_words:
            del body["response_format"]
        return encode({**body, "messages": [*view, *extra]})

    @property
    def chooses(self) -> bool:
        """Whether the client's ``tool_choice`` says more than that the model may choose."""
        return self.policy.needed or self.policy.forbidden or self.policy.names is not None

    def text(self, extra: list[Message], *, roles: Roles = Roles.SYSTEM_FIRST) -> bytes:
        """The body for a model that only knows text: no tools in it, the contract in its system message."""
        assert self.offer is not None
        if self.offer.problem is not None:
            raise self.offer.problem
        options = self._options
        view = self._flat()
        contract = "" if self.policy.forbidden else self.offer.contract
        if self.answer_format is not None:
            if self.count > 1:
                raise InvalidRequestError(
                    "'n' must be 1 with 'tools' and 'response_format': this model is asked twice.", param="n"
                )
            if not self.policy.needed:
                contract += f"\n\n{self.answer_format.instruction}"
        apart = options.system_injection == "prepend" and roles is not Roles.NO_SYSTEM
        if contract and not apart:
            _add_instruction(view, contract)
        view = with_roles(view, roles)
        if contract and apart:
            view.insert(0, {"role": "system", "content": contract})
        if not self.policy.forbidden:
            _demand(view, render_tool_choice(self._tool_choice, parallel=not self.policy.single))
        view += extra
        body: dict[str, Any] = {}
        for name, raw in self.fields.items():
            if name == "messages":
                body[name] = view
            elif name not in _TOOL_FIELDS and (name != "response_format" or self.answer_format is None):
                body[name] = raw
        return encode(body)

    def _flat(self) -> list[Message]:
        """The messages without tool roles."""
        options = self._options
        return flatten_messages(
            self.messages, format=self._how, tool_call_tag=options.tool_call_tag, tool_result_tag=options.tool_result_tag
        )


def _add_instruction(view: list[Message], text: str) -> None:
    """Add to the system (or developer) message in front, or put one there."""
    last = leading_instructions(view) - 1
    if last < 0:
        view.insert(0, {"role": "system", "content": text})
    else:
        view[last] = {**view[last], "content": _with_text(view[last].get("content"), text)}


def _demand(view: list[Message], sentence: str) -> None:
    """Add what ``tool_choice`` demands to the last user message: behind all that the upstream's prompt cache may hold."""
    if not sentence:
        return
    if view and view[-1].get("role") == "user":
        view[-1] = {**view[-1], "content": _with_text(view[-1].get("content"), sentence)}
    else:
        view.append({"role": "user", "content": sentence})


def _with_text(content: Any, text: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    return f"{content}\n\n{text}" if content else text
