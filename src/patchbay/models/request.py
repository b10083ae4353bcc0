"""A chat-completions request: validated, and turned into the upstream's body, native or with the tools in the prompt.

Fields stay the bytes they were received as. The same tools are read once, so the rendered instructions are byte-stable from turn
to turn; they are rendered for text models only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from patchbay._text import one_line, printable
from patchbay.cache import SizedCache
from patchbay.constraints.backends import Backend, Constraint
from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.formats.contract import render_contract, render_tool_choice
from patchbay.formats.render import Writer, writer_for
from patchbay.formats.render.brief import brief_examples, brief_instructions
from patchbay.formats.render.fenced import takes_text
from patchbay.formats.spec import Format
from patchbay.formats.values.tool_names import ToolRules, make_rules
from patchbay.models.capabilities import Unsupported
from patchbay.models.options import TextOptions
from patchbay.models.policy import AnswerFormat, Policy, demands_call, read_answer_format, read_policy
from patchbay.models.refusals import refused_fields, refuses_media
from patchbay.models.roles import INSTRUCTION_ROLES, Roles, leading_instructions, with_roles
from patchbay.models.wire import Raw, decode, encode
from patchbay.transcript import flatten_messages, text_of
from patchbay.types import Message, ToolCall, ToolSpec, read_specs

if TYPE_CHECKING:
    from patchbay.constraints.plan import ConstraintPlanner


class RequestFields:
    """A body of ``POST /chat/completions``. Raises InvalidRequestError for one that no upstream could serve.

    ``given`` is the body as it came, ``body`` the one that is passed on. ``legacy``: it has ``functions`` instead of ``tools``.
    """

    def __init__(self, body: bytes) -> None:
        self.given = self.body = body
        self.fields = read_fields(body)
        self.model: str = _field(self.fields, "model", str, "a string")
        self.stream = bool(_field(self.fields, "stream", bool, "a boolean", optional=True))
        count = _field(self.fields, "n", int, "a whole number", optional=True)
        self.count: int = 1 if count is None else count
        if self.count < 1:
            raise InvalidRequestError("'n' must be at least 1.", param="n")
        self._messages: list[Message] | None = None
        messages = self.fields.get("messages")
        if messages is None or bytes(memoryview(messages)[:1]) != b"[":
            raise InvalidRequestError("'messages' must be an array of messages.", param="messages")
        self.legacy = not _is_set(self.fields.get("tools")) and _is_set(self.fields.get("functions"))

    def value(self, name: str) -> Any:
        """Decode a field; None without one. Raises InvalidRequestError."""
        raw = self.fields.get(name)
        return None if raw is None else read_json(bytes(raw))

    @property
    def tools(self) -> Raw | None:
        """The tools or functions, None without any."""
        raw = self.fields.get("functions" if self.legacy else "tools")
        return raw if _is_set(raw) else None

    @property
    def include_usage(self) -> bool:
        """Whether the client asked for usage in its stream."""
        wanted = self.value("stream_options")
        return isinstance(wanted, Mapping) and bool(wanted.get("include_usage"))

    @property
    def messages(self) -> list[Message]:
        """The messages, decoded once. Raises InvalidRequestError."""
        if self._messages is None:
            messages = read_json(bytes(self.fields["messages"]))
            _check(messages)
            self._messages = messages
        return self._messages

    def check_messages(self) -> None:
        """Raise InvalidRequestError for messages that no upstream could serve; only invalid ones are decoded fully."""
        if self._messages is None:
            try:
                _well_formed.decode(bytes(self.fields["messages"]))  # quick, and strict
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                self.messages  # noqa: B018  (raises the error)


class _Message(msgspec.Struct):
    """The members that are checked in every message."""

    role: str
    tool_calls: list[Raw] | None = None


_well_formed = msgspec.json.Decoder(list[_Message])


def _check(messages: list[Any]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequestError(f"'messages[{index}]' must be an object.", param=f"messages[{index}]")
        if not isinstance(message.get("tool_calls") or [], list):
            raise InvalidRequestError(f"'messages[{index}].tool_calls' must be an array.", param=f"messages[{index}].tool_calls")
        if not isinstance(message.get("role"), str):
            raise InvalidRequestError(f"'messages[{index}].role' must be a string.", param=f"messages[{index}].role")


def has_other_tool_types(tools: Any) -> bool:
    """Whether a list of tools has one that is not a function."""
    return isinstance(tools, list) and any(
        isinstance(tool, Mapping) and isinstance(tool.get("type"), str) and tool["type"] != "function" for tool in tools
    )


_fields = msgspec.json.Decoder(dict[str, Raw])


def read_fields(body: bytes) -> dict[str, Raw]:
    """Split a request's JSON object into its members, undecoded. Raises InvalidRequestError."""
    try:
        fields = _fields.decode(body)
    except msgspec.ValidationError:
        raise InvalidRequestError("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = read_json(body)  # lone surrogates, or not JSON at all
        if not isinstance(value, dict):
            raise InvalidRequestError("The request body must be a JSON object.") from None
        fields = {name: Raw(encode(field)) for name, field in value.items()}
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.") from None
    return fields


def read_json(data: bytes) -> Any:
    """Decode a request, or a member of one. Raises InvalidRequestError."""
    try:
        return decode(data)
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.") from None
    except ValueError as error:
        raise InvalidRequestError(f"The request body is not valid JSON: {error}") from None


def _is_set(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw) not in (b"null", b"[]")


def _field(fields: dict[str, Raw], name: str, kind: type, words: str, *, optional: bool = False) -> Any:
    raw = fields.get(name)
    if raw is None and not optional:
        raise InvalidRequestError(f"'{name}' is missing: it must be {words}.", param=name)
    value = None if raw is None else read_json(bytes(raw))
    if value is None and optional:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)) or value == "":
        raise InvalidRequestError(f"'{name}' must be {words}.", param=name)
    return value


_logger = logging.getLogger(__name__)
_MOST_LOGGED: Final = 1000
_LEFT_OUT: Final = "[A {} was left out: the model's server does not take it.]"
_SHOWN: Final = {"image_url": "picture", "input_audio": "sound"}
_OPTIONS: Final = frozenset({"reasoning_effort", "service_tier", "verbosity"})
"""Fields that a front-end translates and that change no answer's meaning."""
_OWN_FIELD: Final = "patchbay"
_OWN_OPTIONS: Final = {"tools": str, "constrain": str, "copy_arguments": bool}
"""The options that a request may set itself."""
_TOOL_FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "messages"})
_CONSTRAINTS: Final = frozenset(
    {
        "grammar",
        "json_schema",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
        "regex",
        "ebnf",
    }
)
"""Fields of llama.cpp, vLLM and SGLang that constrain what is sampled."""


@dataclass(frozen=True)
class RequestTools:
    """The tools of a request. ``specs`` is None if one is not a function: those cannot be written into a prompt."""

    specs: tuple[ToolSpec, ...] | None
    names: frozenset[str]
    rules: ToolRules
    options: TextOptions
    format: str | Format
    problem: InvalidRequestError | None = None

    @cached_property
    def text_tools(self) -> frozenset[str]:
        """The tools whose calls the contract teaches to write as plain text."""
        if self.options.template is not None:
            return frozenset()
        return frozenset(spec.name for spec in self.specs or () if takes_text(spec))

    @cached_property
    def words(self) -> int:
        """The number of words in the shortest form of the tools: as TypeScript."""
        return len(writer_for("harmony").listing(self.specs or ()).split())

    @cached_property
    def stop(self) -> str | None:
        """The beginning of the contract's block for a result, which a model never writes; None in a family's own format."""
        options = self.options
        writer = writer_for(self.format, tool_call_tag=options.tool_call_tag, tool_result_tag=options.tool_result_tag)
        return f"```{options.tool_result_tag}" if writer.format == "fenced" else None

    @cached_property
    def planner(self) -> ConstraintPlanner:
        """Makes the grammars of these tools' calls."""
        from patchbay.constraints.plan import ConstraintPlanner  # (needed only where a server takes a grammar)

        made = ConstraintPlanner(self.specs or (), self._writer)
        if made.unenforced:
            left = printable(one_line("; ".join(made.unenforced), _MOST_LOGGED))
            _logger.info("Of these tools' schemas, a grammar of their calls does not enforce: %s", left)
        return made

    @property
    def _writer(self) -> Writer:
        options = self.options
        tags = {"tool_call_tag": options.tool_call_tag, "tool_result_tag": options.tool_result_tag}
        return writer_for(self.format, **tags, text_tools=self.text_tools)

    @cached_property
    def contract(self) -> str:
        """The instructions for a text model, rendered on first use."""
        options = self.options
        return render_contract(
            self.specs or (),
            format=self.format,
            tool_call_tag=options.tool_call_tag,
            tool_result_tag=options.tool_result_tag,
            include_examples=options.include_examples,
            template=options.template,
        )

    def brief_contract(self, *, needed: bool) -> str:
        """Return the instructions for a very small model. ``needed``: each answer is a call."""
        form = self._writer.calls([ToolCall("call_0", "name_of_the_tool", '{"name_of_the_argument": "value"}')])
        return brief_instructions(self.specs or (), form=form, needed=needed)

    def brief_examples(self, *, needed: bool) -> list[Message]:
        """Return the examples that go with ``brief_contract``."""
        return brief_examples(self.specs or (), lambda call: self._writer.calls([call]), needed=needed)


def _read_tools(raw: bytes, options: TextOptions, prompt_format: str | Format, *, legacy: bool) -> RequestTools:
    tools = decode(raw)
    if legacy:
        if not isinstance(tools, list):
            raise InvalidRequestError("'functions' must be an array.", param="functions")
        tools = [{"type": "function", "function": function} for function in tools]
    try:
        specs = read_specs(tools, param="functions" if legacy else "tools")
    except InvalidRequestError as error:
        if not has_other_tool_types(tools):
            raise
        return RequestTools(None, _function_names(tools), make_rules(None, "text"), options, prompt_format, error)
    return RequestTools(
        specs, frozenset(spec.name for spec in specs), make_rules(specs, options.unknown_tools), options, prompt_format
    )


_tools_cache: SizedCache[tuple[bytes, TextOptions, str | Format, bool], RequestTools] = SizedCache(
    most=64, most_bytes=16 * 1024 * 1024
)
"""Parsed tools of recent requests, by their bytes."""


def _request_tools(raw: bytes, options: TextOptions, prompt_format: str | Format, *, legacy: bool) -> RequestTools:
    """Read tools that are to be rendered in ``prompt_format``; the same bytes are read once. Raises InvalidRequestError."""
    key = (raw, options, prompt_format, legacy)
    if (tools := _tools_cache.get(key)) is None:
        tools = _read_tools(raw, options, prompt_format, legacy=legacy)
        _tools_cache.put(key, tools, len(raw))
    return tools


def _function_names(tools: list[Any]) -> frozenset[str]:
    found = (tool.get("function") for tool in tools if isinstance(tool, Mapping))
    return frozenset(f["name"] for f in found if isinstance(f, Mapping) and isinstance(f.get("name"), str))


class ChatCompletionBody(RequestFields):
    """A body of ``POST /chat/completions`` with its tools read. Raises InvalidRequestError."""

    def __init__(self, body: bytes, options: TextOptions, *, is_translated: bool = False) -> None:
        """``is_translated``: the body is not what the client wrote, so the answer is parsed even without tools."""
        super().__init__(body)
        self._is_translated = is_translated
        self.options = options = self._with_own_options(options)
        self._format = options.prompt_format(self.model)
        self.request_tools: RequestTools | None = None
        self.policy = Policy()
        raw = self.tools
        if raw is not None:
            self.request_tools = _request_tools(bytes(raw), options, self._format, legacy=self.legacy)
            if not self.request_tools.names and self.request_tools.specs is not None:
                self.request_tools = None
        self.answer_format: AnswerFormat | None = None
        """The ``response_format``, if there are tools beside it."""
        if self.request_tools is not None:
            if "response_format" in self.fields:
                self.answer_format = read_answer_format(bytes(self.fields["response_format"]))
            self._tool_choice = self._read_tool_choice()
            if self.request_tools.specs is not None:
                parallel = self.value("parallel_tool_calls") if not self.legacy else False
                self.policy = read_policy(self._tool_choice, parallel, self.request_tools.names)
        elif demands_call(self.value("tool_choice")):
            raise InvalidRequestError("'tool_choice' demands a call, but the request has no 'tools'.", param="tool_choice")
        elif is_translated:
            self.request_tools = RequestTools((), frozenset(), make_rules((), "text"), options, self._format)
            self._drop({"tool_choice", "parallel_tool_calls"})  # servers refuse them without tools

    def _with_own_options(self, options: TextOptions) -> TextOptions:
        """Return the options with those of the request's own ``patchbay`` field, which is not sent on."""
        if _OWN_FIELD not in self.fields:
            return options
        given = self.value(_OWN_FIELD)
        self._drop({_OWN_FIELD})
        if given is None:
            return options
        if not isinstance(given, Mapping) or given.keys() - _OWN_OPTIONS.keys():
            *first, last = map(repr, _OWN_OPTIONS)
            unknown = ", ".join(map(repr, given.keys() - _OWN_OPTIONS.keys())) if isinstance(given, Mapping) else ""
            problem = f"'{_OWN_FIELD}' has no option {unknown}" if unknown else f"'{_OWN_FIELD}' must be an object"
            raise InvalidRequestError(f"{problem}: its options are {', '.join(first)} and {last}.", param=_OWN_FIELD)
        for name, value in given.items():
            if not isinstance(value, _OWN_OPTIONS[name]):
                kind = "a boolean" if _OWN_OPTIONS[name] is bool else "a string"
                raise InvalidRequestError(f"'{_OWN_FIELD}.{name}' must be {kind}.", param=f"{_OWN_FIELD}.{name}")
        try:
            return replace(options, **given)
        except ConfigurationError as error:
            raise InvalidRequestError(f"'{_OWN_FIELD}': {error}", param=_OWN_FIELD) from None

    def _drop(self, names: AbstractSet[str]) -> None:
        if not names.isdisjoint(self.fields):
            self.fields = {name: raw for name, raw in self.fields.items() if name not in names}
            self.body = encode(self.fields)

    def unsupported(self, status: int, text: str) -> frozenset[Unsupported]:
        """Return what in this request the upstream's error refuses and may be left out: parameters, kinds of media."""
        options = refused_fields(status, text, _OPTIONS & self.fields.keys()) if self._is_translated else ()
        media = (part["type"] for message in self.messages for part in _media(message)) if refuses_media(status, text) else ()
        return frozenset([*((name, bytes(self.fields[name])) for name in options), *((kind, b"") for kind in media)])

    def leave_out(self, what: AbstractSet[Unsupported]) -> frozenset[str]:
        """Leave these parameters and media out; return the names of the parameters that the request had."""
        options = {name for name, value in what if value and bytes(self.fields.get(name, b"")) == value}
        self._drop(options)
        kinds = {name for name, value in what if not value}
        if kinds and any(part["type"] in kinds for message in self.messages for part in _media(message)):
            self._messages = [_without_media(message, kinds) if _media(message) else message for message in self.messages]
            self._drop({"messages"})
            self.fields["messages"] = Raw(encode(self._messages))
            self.body = encode(self.fields)
        return frozenset(options)

    def _read_tool_choice(self) -> Any:
        if not self.legacy:
            return self.value("tool_choice")
        choice = self.value("function_call")
        return {"type": "function", "function": choice} if isinstance(choice, Mapping) else choice

    @property
    def constrained(self) -> bool:
        """Whether the client constrains what is sampled."""
        return not _CONSTRAINTS.isdisjoint(self.fields) or b'"structural_tag"' in bytes(self.fields.get("response_format", b""))

    def had_tools(self, tokens: int) -> bool | None:
        """Whether a prompt of so many tokens had the tools in it, beside its messages; None if that is not certain.

        Tokenizers need at most one token per byte, plus a default system prompt (64); and at least one per word, less a quarter
        for those with tokens of several words. Fewer tokens than the words of the messages prove nothing: some servers count only
        what was not in their cache.
        """
        assert self.request_tools is not None
        contents = [(message.get("role"), message.get("content")) for message in self.messages]
        is_text = all(content is None or isinstance(content, str) for _, content in contents)
        if is_text and tokens > len(bytes(self.fields["messages"])) + 64:
            return True
        words = sum(len(text_of(content).split()) for role, content in contents if role in ("user", *INSTRUCTION_ROLES))
        return False if words <= tokens < (words + self.request_tools.words) * 3 // 4 else None

    def native_body(
        self, more: list[Message], added: dict[str, Any], *, tool_choice_in_words: bool, format_apart: bool, roles: Roles
    ) -> bytes:
        """Return the client's body with ``more`` messages appended, and with the fields ``added``.

        ``tool_choice_in_words``: the server takes no ``tool_choice``, so it is moved into the prompt; ``format_apart``: the same
        for a server that takes no ``response_format`` beside tools.
        """
        in_words = tool_choice_in_words and self.restricts_calls
        apart = format_apart and self.answer_format is not None
        if not (more or added or in_words or apart or roles is not Roles.ALL):
            self.check_messages()
            return self.body
        view = [*self.messages]
        if apart and self.answer_format is not None and not self.policy.needed:
            _add_instruction(view, self.answer_format.instruction)
        view = with_roles(view, roles)
        left_out: set[str] = {"response_format"} if apart else set()
        if in_words:
            _append_demand(view, render_tool_choice(self._tool_choice, parallel=not self.policy.single))
            left_out |= {"tool_choice", "function_call"}
        fields = {name: raw for name, raw in self.fields.items() if name not in left_out}
        return encode({**fields, **added, "messages": [*view, *more]})

    def answer_alone_body(
        self, more: list[Message], added: dict[str, Any], *, as_text: bool, format_in_words: bool, roles: Roles
    ) -> bytes:
        """Return the body that asks for the answer in ``response_format``, without tools.

        ``as_text``: the model only knows text. ``format_in_words``: the server takes no ``response_format`` at all.
        """
        assert self.answer_format is not None
        view = with_roles(self._flat() if as_text else self.messages, roles)
        if not more:
            _append_demand(view, self.answer_format.demand())
        body: dict[str, Any] = {name: raw for name, raw in self.fields.items() if name not in _TOOL_FIELDS}
        if format_in_words:
            del body["response_format"]
        return encode({**body, **added, "messages": [*view, *more]})

    def constraint(self, backend: Backend, *, reasons: bool, opened: bool) -> Constraint:
        """Return the constraint of a text model's reply. ``reasons``, ``opened``: the model may reason first, has begun to."""
        from patchbay.constraints.calls import MAX_CALLS
        from patchbay.constraints.plan import answer_form
        from patchbay.constraints.replies import ReplyRules

        assert self.request_tools is not None
        policy, options = self.policy, self.options
        is_single = policy.single or options.copy_arguments  # a small model repeats its call until it is cut
        rules = ReplyRules(
            needed=policy.needed,
            most=0 if policy.forbidden else 1 if is_single else MAX_CALLS,
            answer=None if self.answer_format is None or policy.needed else answer_form(self.answer_format.schema),
            reasoning=reasons and options.reasoning,
            opened=opened,
        )
        copied_from = self.copied_text if options.copy_arguments else None
        return self.request_tools.planner.constraint(backend, rules, names=policy.names, copied_from=copied_from)

    @property
    def copied_text(self) -> str:
        """The text that arguments may be copied from: what users wrote and tools returned."""
        said = [text_of(message.get("content")) for message in self.messages if message["role"] in ("user", "tool", "function")]
        return "\n".join(said)

    @property
    def restricts_calls(self) -> bool:
        """Whether the client's ``tool_choice`` restricts the model."""
        return self.policy.needed or self.policy.forbidden or self.policy.names is not None

    def text_body(self, more: list[Message], added: dict[str, Any], *, roles: Roles) -> bytes:
        """Return the body for a model that only knows text: without tools, the contract in its system message."""
        assert self.request_tools is not None
        if self.request_tools.problem is not None:
            raise self.request_tools.problem
        options = self.options
        view = self._flat()
        is_brief = options.copy_arguments and options.template is None and not self.policy.forbidden
        contract = "" if self.policy.forbidden else self.request_tools.contract
        if is_brief:
            contract = self.request_tools.brief_contract(needed=self.policy.needed)
            begin = leading_instructions(view)
            view[begin:begin] = self.request_tools.brief_examples(needed=self.policy.needed)
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
        if not self.policy.forbidden and not is_brief:
            _append_demand(view, render_tool_choice(self._tool_choice, parallel=not self.policy.single))
        view += more
        body: dict[str, Any] = {}
        for name, raw in self.fields.items():
            if name == "messages":
                body[name] = view
            elif name not in _TOOL_FIELDS and (name != "response_format" or self.answer_format is None):
                body[name] = raw
        return encode(body | added)

    def _flat(self) -> list[Message]:
        """Return the messages without tool roles."""
        options, tools = self.options, self.request_tools
        return flatten_messages(
            self.messages,
            format=self._format,
            tool_call_tag=options.tool_call_tag,
            tool_result_tag=options.tool_result_tag,
            text_tools=tools.text_tools if tools is not None else frozenset(),
        )


def format_name(options: TextOptions, model: str) -> str:
    """Return the name of the format in which a text model gets its tools."""
    return writer_for(options.prompt_format(model)).format


def _media(message: Message) -> list[Mapping[str, Any]]:
    """Return the parts of a message that are not text."""
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return [part for part in parts if isinstance(part, dict) and part.get("type") not in ("text", "refusal", None)]


def _without_media(message: Message, kinds: AbstractSet[str]) -> Message:
    """Say in the place of each part of these kinds that it was left out."""
    parts = [
        {"type": "text", "text": _LEFT_OUT.format(_SHOWN.get(part["type"], "file"))}
        if isinstance(part, dict) and part.get("type") in kinds
        else part
        for part in message["content"]
    ]
    made = {**message, "content": parts}
    return made if _media(made) else {**made, "content": text_of(parts)}


def _add_instruction(view: list[Message], text: str) -> None:
    """Append to the leading system (or developer) message, or insert one."""
    last = leading_instructions(view) - 1
    if last < 0:
        view.insert(0, {"role": "system", "content": text})
    else:
        view[last] = {**view[last], "content": _with_text(view[last].get("content"), text)}


def _append_demand(view: list[Message], sentence: str) -> None:
    """Append the demand of ``tool_choice`` to the last user message, after all that the upstream may have cached."""
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
