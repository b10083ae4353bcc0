"""Capabilities of models and their servers, learned from errors and answers.

"auto" begins native, unless llama.cpp's ``/props`` say that the model's template has no tools. A server that refuses ``tools``
reports an error. A server that drops them does not, so the first answers without a call are checked: unless the prompt's token
count shows whether the tools were in it, the model is asked once more with the tools in its prompt. A call in that second answer
decides; otherwise the check is repeated at the 2nd, 4th, 8th … answer without a call. Servers known to take tools are not checked
(``doubts=False``); they may still refuse them.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias, TypeVar

from patchbay._text import one_line, printable
from patchbay.constraints.backends import Backend, backend_of
from patchbay.errors import UpstreamError
from patchbay.models.providers import REASONING_FIELDS, SENT_BACK, keep_fields, without_fields
from patchbay.types import Message

_MOST_MODELS = 1024
_MOST_READ: Final = 4096
_CONFIRMATIONS = 2
"""Answers in a row that show that a prompt opens the reasoning: one stray tag must not change the answers of all clients."""
_TOOL = r"(?:tools?|functions?|tool[ _-]?(?:use|usage|calls?|calling|choice)|function[ _-]?call(?:s|ing)?)"
_NO_PATH = r"(?!\s*[\[.]\s*\w)"  # "tools[0].function.name" is about a tool, not about tools as such
_FIELD = rf"\W+(?:tools|tool_choice|functions)\b{_NO_PATH}"
_NO_EXTRAS = r"extra (?:inputs?|fields?) (?:are )?not (?:permitted|allowed)"
_REFUSALS = (
    rf"(?:(?:not|n't) support|no support for) (?:\w+ ){{0,2}}['\"`]?{_TOOL}\b{_NO_PATH}",
    rf"\b{_TOOL}\b{_NO_PATH}['\"`]? (?:(?:is|are) )?(?:not |un)(?:yet )?(?:supported|available|enabled|implemented|allowed)",
    rf"\b{_TOOL} has not been enabled",
    rf"unsupported (?:param|parameter|field|argument|feature)s?\W+{_TOOL}\b{_NO_PATH}",
    rf"(?:unrecogni[sz]ed|unknown|unexpected) (?:request )?(?:parameter|field|(?:keyword )?argument|key)s?(?: supplied)?{_FIELD}",
    rf"{_NO_EXTRAS}[^\[\]]*['\"](?:tools|tool_choice)['\"]",
    rf"['\"](?:tools|tool_choice)['\"]\W{{0,4}}(?:msg\W+)?{_NO_EXTRAS}",
    r"tool choice requires --",  # servers that were started without their tool parser
    r"tools param requires --",
    r"endpoints found that support (?:tool use|the provided 'tool_choice')",
    r"samplers: failed to parse grammar",  # llama.cpp makes a grammar of the tools
)
_REFUSAL = re.compile("|".join(_REFUSALS), re.IGNORECASE)
_REFUSAL_STATUSES = frozenset({400, 404, 405, 422, 500, 501})
_CHOICE = re.compile(r"\btool[_ ]?choice\b", re.IGNORECASE)


_MODES: Final = {
    "native": "takes tools",
    "text": "takes no tools: they are written into the prompt, and calls are read from the model's text",
}
_logger = logging.getLogger(__name__)


INSTRUCTION_ROLES: Final = ("system", "developer")
_ODD_ROLE: Final = r"\b(?:un[a-z]+|invalid)\W+(?:message )?role\b"
_NO_DEVELOPER: Final = re.compile(
    rf"['\"`]developer['\"`]|\bdeveloper (?:role|message|instruction|prompt)|\broles?\b[^\n]{{0,80}}\bdeveloper\b|{_ODD_ROLE}",
    re.IGNORECASE,
)
_NO_SYSTEM: Final = re.compile(
    r"\bsystem['\"`]?[ _-](?:role|message|instruction|prompt)|\broles?\b[^\n]{0,80}\bsystem\b"
    rf"|only ['\"`]?user['\"`]? (?:and|or) ['\"`]?assistant['\"`]? roles|{_ODD_ROLE}"
    r"|developer instruction is not enabled",  # Gemini
    re.IGNORECASE,
)
_ROLE_STATUSES: Final = frozenset({400, 422, 500})


class Roles(IntEnum):
    """Roles of messages that a server accepts; each level accepts fewer than the one before it."""

    ALL = 0
    NO_DEVELOPER = 1
    """"developer" is sent as "system"."""
    SYSTEM_FIRST = 2
    """One system message, in front; later instructions are marked text of the user."""
    NO_SYSTEM = 3
    """All instructions are marked text of the user."""


_ROLES: Final = {
    Roles.ALL: "all are sent",
    Roles.NO_DEVELOPER: "developer is sent as system",
    Roles.SYSTEM_FIRST: "one system message is sent, in front",
    Roles.NO_SYSTEM: "instructions are sent as marked text of the user",
}


Unsupported: TypeAlias = tuple[str, bytes]
"""What a server does not take: a parameter with its value as JSON, or a type of content parts with b""."""
_FIELDS: Final = {
    "reasoning_effort": re.compile(r"reasoning[_ .]?effort|\breasoning\b|\bthink(?:ing)?\b", re.IGNORECASE),
    "service_tier": re.compile(r"\bservice[_ ]tier\b", re.IGNORECASE),
    "stop": re.compile(r"\bstop\b"),
    "stream": re.compile(r"\bstream(?:ing|_options)?\b"),
    "verbosity": re.compile(r"\bverbosity\b"),
}
"""Fields that may be left out of a request that was not the client's own, and how an error names them."""
_NO_SUPPORT: Final = (
    r"(?:not|n't)(?: yet)?(?: be)? (?:support|accept|allow|available|enabled)|unsupported"
    r"|only supported by|endpoints found that support|missing data required for|must be a string|valid string"
    r"|unknown variant|expected `?text"
)
_MEDIA: Final = r"(?:image|picture|vision|multi-?modal|audio|\bfiles?\b|content(?:\b|\[|_))"
_NO_MEDIA: Final = re.compile(
    rf"{_MEDIA}[^\n]{{0,80}}(?:{_NO_SUPPORT})|(?:{_NO_SUPPORT})[^\n]{{0,80}}{_MEDIA}|\bmmproj\b|at most 0 (?:image|audio)"
    r"|not a (?:multi-?modal|vision)|concatenate str \(not \W{1,3}list"
    r"|only \W?text\W? content|unexpected item type in content",
    re.IGNORECASE,
)
_DAMAGED: Final = re.compile(
    r"\bformats?\b|mime|decod|corrupt|dimension|too (?:large|big)|\bwebp\b|\bsvg\b|\bgif\b|\burls?\b|fetch|download",
    re.IGNORECASE,
)
_MEDIA_STATUSES: Final = frozenset({400, 404, 415, 422, 500, 501})


class FormatUse(IntEnum):
    """When a model's server accepts ``response_format``."""

    BESIDE_TOOLS = 0
    ALONE = 1
    NEVER = 2


@dataclass(frozen=True)
class Accepted:
    """What a model's server accepts in a request, as far as it is known."""

    roles: Roles = Roles.ALL
    format_use: FormatUse = FormatUse.BESIDE_TOOLS
    choice_in_words: bool = False
    """``tool_choice`` is refused and goes into the prompt."""
    constraint_alone: bool = False
    """A client's grammar is refused beside tools."""
    only_streams: bool = False
    """It answers in a stream only."""
    no_constraint: bool = False
    """A constraint of ours is refused."""
    not_added: frozenset[str] = frozenset()
    """The fields that may not be added to a request."""
    unsupported: frozenset[Unsupported] = frozenset()

    def describe(self, name: str) -> str:
        """Say what the field ``name`` means, "" for one that is not worth a line in the log."""
        if name == "roles":
            return f"does not take all roles of messages: {_ROLES[self.roles]}"
        if name == "format_use":
            return f"takes no response_format {'beside tools' if self.format_use is FormatUse.ALONE else 'at all'}"
        if name == "choice_in_words":
            return "takes no tool_choice: it is asked for in the prompt"
        if name == "no_constraint":
            return "refuses a grammar: calls are not constrained"
        if name == "unsupported":
            names = sorted(f"{each}={value.decode()}" if value else each for each, value in self.unsupported)
            return f"does not take {', '.join(names)}: left out from now on"
        return ""


class ModelCapabilities:
    """The known capabilities of one model at one server."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open_answers = 0
        self._unopened = 0
        self.mode: Literal["native", "text"] | None = None
        self.why = ""
        """What has shown the mode."""
        self.accepts = Accepted()
        self.refused: set[str] = set()
        """Names of parameters and message fields."""
        self.streams_usage: bool | None = None
        """It sends the usage in a stream; None: unknown."""
        self.all_reasoning = False
        """Each assistant message must carry its reasoning."""

    def learn_mode(self, mode: Literal["native", "text"], why: str) -> None:
        """Record how the model takes tools, and what has shown it."""
        if self.mode != mode:
            self.mode, self.why = mode, why
            self._log(_MODES[mode])

    def learn(self, changes: Mapping[str, Any]) -> None:
        """Record fields of ``accepts`` that a request has shown."""
        before, self.accepts = self.accepts, replace(self.accepts, **changes)
        for name, value in changes.items():
            if value != getattr(before, name) and (words := self.accepts.describe(name)):
                self._log(words)

    @property
    def open_answers(self) -> int:
        """How many answers without a call have decided nothing."""
        return self._open_answers

    @property
    def limits(self) -> list[str]:
        """What its server does not take, in words."""
        accepts = self.accepts
        words = [accepts.describe(each.name) for each in fields(accepts) if getattr(accepts, each.name) != each.default]
        refused = [f"refuses {', '.join(sorted(self.refused))}: left out from now on"] if self.refused else []
        return [*(word for word in words if word), *refused]

    @property
    def probe_due(self) -> bool:
        """Whether to check an answer without a call now: the 1st, 2nd, 4th, 8th … of a model with no known mode."""
        number = self._open_answers + 1
        return self.mode is None and number & (number - 1) == 0

    def count_open_answer(self) -> None:
        """Count an answer without a call that decided nothing."""
        self._open_answers += 1

    @property
    def prefilled(self) -> bool:
        """Whether the model's prompt opens its reasoning."""
        return self._unopened >= _CONFIRMATIONS

    def note_reasoning(self, *, unopened: bool) -> None:
        """Note whether an answer closed a reasoning that it had not opened."""
        self._unopened = min(self._unopened + 1, _CONFIRMATIONS) if unopened else 0

    def _log(self, what: str) -> None:
        _logger.info("The server of the model %s %s", *(printable(one_line(text, 200)) for text in (self._name, what)))


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself. ``reasons``: its model's template has reasoning; None: unknown."""

    backend: Backend | None = None
    reasons: bool | None = None


class Capabilities:
    """The capabilities of one server's models. Shared by its clients, bounded, not persisted.

    ``doubts``: this server may drop tools without an error, so answers without a call are checked.
    """

    def __init__(self, *, doubts: bool = True) -> None:
        self.doubts = doubts
        self.server: ServerFacts | None = None if doubts else ServerFacts()
        """What the server says of itself; None until it has answered, if it is asked."""
        self._is_asked = False
        self._undescribed = 0
        self._mode: Literal["native", "text"] | None = None
        self._models: OrderedDict[Any, ModelCapabilities] = OrderedDict()

    def begin_description(self, *, needed: bool) -> bool:
        """Whether to ask the server for its description now; ``learn_description`` or ``end_description`` follows.

        A server that cannot answer (it loads its model, say) is asked again at the 2nd, 4th, 8th … request, and by each that
        cannot go on without (``needed``). A request that comes while another one asks does not wait.
        """
        if self.server is not None or (self._is_asked and not needed):
            return False
        self._undescribed += 1
        self._is_asked = needed or self._undescribed & (self._undescribed - 1) == 0
        return self._is_asked

    def end_description(self) -> None:
        """Let the next request ask again, if there was no answer."""
        self._is_asked = False

    def learn_description(self, description: Any) -> None:
        """Record what a server says of itself: llama.cpp's ``/props``, or a list of models. None: it could not be asked.

        llama.cpp's template is that of its only model, whatever name that is requested by.
        """
        if not isinstance(description, Mapping):
            self.server = self.server or (None if description is None else ServerFacts())
            return
        caps, template = description.get("chat_template_caps"), description.get("chat_template")
        takes_tools = caps.get("supports_tools") if isinstance(caps, Mapping) else None
        if isinstance(takes_tools, bool):
            self._mode = "native" if takes_tools else "text"
        self.server = ServerFacts(backend_of(description), "</think>" in template if isinstance(template, str) else None)

    @property
    def models(self) -> list[tuple[Any, ModelCapabilities]]:
        """The models that were asked for, the last one at the end."""
        return list(self._models.items())

    def of(self, model: Any) -> ModelCapabilities:
        """Return the capabilities of a model."""
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = ModelCapabilities(str(model))
            _logger.info("First request for the model %s", printable(one_line(str(model), 200)))
            if len(self._models) > _MOST_MODELS:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end(model)
        if known.mode is None and self._mode is not None:
            known.learn_mode(self._mode, f"llama.cpp says that its template has {'' if self._mode == 'native' else 'no '}tools")
        return known


def fewer_roles(status: int, text: str, messages: Sequence[Message], roles: Roles) -> Roles | None:
    """Return the roles to try after an upstream's error about them; None for any other error."""
    if status not in _ROLE_STATUSES:
        return None
    text = text[:_MOST_READ]
    used = [message.get("role") for message in messages]
    if roles < Roles.NO_DEVELOPER and "developer" in used and _NO_DEVELOPER.search(text):
        return Roles.NO_DEVELOPER
    if roles is Roles.NO_SYSTEM or not _NO_SYSTEM.search(text):
        return None
    if roles < Roles.SYSTEM_FIRST and any(role in INSTRUCTION_ROLES for role in used[1:]):
        return Roles.SYSTEM_FIRST
    return Roles.NO_SYSTEM if any(role in INSTRUCTION_ROLES for role in used) else None


def refuses_tools(status: int, text: str) -> bool:
    """Whether an upstream's error refuses tools as such, rather than something in them or elsewhere."""
    return status in _REFUSAL_STATUSES and _REFUSAL.search(text[:_MOST_READ]) is not None


def refuses_media(status: int, text: str) -> bool:
    """Whether an upstream's error refuses parts of content that are not text, rather than one of them."""
    text = text[:_MOST_READ]
    return status in _MEDIA_STATUSES and _NO_MEDIA.search(text) is not None and _DAMAGED.search(text) is None


def refused_fields(status: int, text: str, names: Iterable[str]) -> set[str]:
    """Return the fields among ``names`` that an upstream's error mentions, and that may be left out."""
    text = text[:_MOST_READ]
    known = _FIELDS.keys() & set(names) if status in _REFUSAL_STATUSES else ()
    return {name for name in known if _FIELDS[name].search(text)}


def refuses_choice(status: int, text: str) -> bool:
    """Whether an upstream's error is about ``tool_choice``."""
    return status in (400, 404, 422) and _CHOICE.search(text[:_MOST_READ]) is not None


Answer = TypeVar("Answer")

_CONSTRAINT: Final = re.compile(
    r"\bgrammars?\b|\bgbnf\b|\bebnf\b|structured[_ ]outputs?|guided[_ ]\w+|response[_ ]?format|json[_ ]schema|\bsamplers?\b",
    re.IGNORECASE,
)


def refuses_constraint(status: int, text: str) -> bool:
    """Whether an upstream's error may be about a constraint that was added to the request."""
    return status in _REFUSAL_STATUSES and _CONSTRAINT.search(text[:_MOST_READ]) is not None


_STATUSES: Final = frozenset({400, 422})
_DISPENSABLE: Final = SENT_BACK | {"stream_options", "parallel_tool_calls"}
"""Names that may be left out of a request without changing its meaning."""
_MENTIONED: Final = {name: re.compile(rf"\b{name}\b") for name in _DISPENSABLE} | {
    # A common word in errors: it must be quoted, or part of a path.
    "reasoning": re.compile(r"""(?:['"`]|\.)reasoning\b""")
}
_ONLY_STREAMS: Final = re.compile(
    r"non-streaming calls|only supports? (?:the )?stream|stream\W{0,3}=\W{0,3}false"
    r"|stream\W{0,3}(?:must|should|has to) be (?:set to )?true",
    re.IGNORECASE,
)


_WANTS_REASONING: Final = re.compile(
    r"missing\W+reasoning(?:_content|_details)?\b"
    r"|\breasoning(?:_content|_details)?\b[^.]{0,60}?(?:is missing|is required|must be (?:passed|sent|given|provided))",
    re.IGNORECASE,
)


async def request_with_retries(
    ask: Callable[[dict[str, Any]], Awaitable[Answer]], body: dict[str, Any], known: ModelCapabilities, sent_back: frozenset[str]
) -> Answer:
    """Call ``ask``, and again without fields that the server refuses by name, or with reasoning that it demands; record both.

    ``sent_back`` are the fields of messages that its provider knows. The last exception of ``ask`` is raised.
    """
    refused, all_reasoning, demanded = set(known.refused), known.all_reasoning, False
    while True:
        sent = _with_fields(body, sent_back, refused, all_reasoning=all_reasoning)
        try:
            answer = await ask(sent)
        except UpstreamError as error:
            if demands_reasoning(error):
                refused -= REASONING_FIELDS
                all_reasoning = demanded = True
                if _with_fields(body, sent_back, refused, all_reasoning=True) == sent:
                    raise
                continue
            named = complained_of(error, sent)
            if demanded:
                named -= REASONING_FIELDS
            if not named:
                raise
            refused |= named
        else:
            known.refused, known.all_reasoning = refused, all_reasoning
            return answer


def _with_fields(body: dict[str, Any], kept: frozenset[str], refused: set[str], *, all_reasoning: bool) -> dict[str, Any]:
    messages = keep_fields(body["messages"], kept, all_reasoning=all_reasoning and not kept.isdisjoint(REASONING_FIELDS))
    return without({**body, "messages": messages}, refused)


def complained_of(error: UpstreamError, body: Mapping[str, Any]) -> set[str]:
    """Return the dispensable names in ``body`` that the server's error mentions; empty for other errors."""
    if error.upstream_status not in _STATUSES:
        return set()
    said = f"{error} {error.body}"
    return {name for name in _dispensable(body) if _MENTIONED[name].search(said)}


def demands_stream(status: int, text: str) -> bool:
    """Whether an upstream's error says that the model only streams."""
    return status in _STATUSES and _ONLY_STREAMS.search(text) is not None


def demands_reasoning(error: UpstreamError) -> bool:
    """Whether the error says that a message lacks its reasoning."""
    return error.upstream_status in _STATUSES and _WANTS_REASONING.search(f"{error} {error.body}") is not None


def without(body: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Leave these parameters out of a body, and these fields out of its messages."""
    if not names or names.isdisjoint(_dispensable(body)):
        return body
    smaller = {key: value for key, value in body.items() if key not in names}
    smaller["messages"] = without_fields(body["messages"], names)
    return smaller


def _dispensable(body: Mapping[str, Any]) -> set[str]:
    """Return the names in a body that may be left out."""
    found = {"stream_options"} & body.keys()
    if body.get("parallel_tool_calls") is True:
        found.add("parallel_tool_calls")
    for message in body["messages"]:
        found |= SENT_BACK & message.keys()
        for call in message.get("tool_calls") or ():
            found |= SENT_BACK & call.keys()
    return found
