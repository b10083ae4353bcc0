"""What an error of a model's server refuses or demands, in the words of many servers; what is learnt of it: ``capabilities``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from patchbay.errors import UpstreamError
from patchbay.models.providers import SENT_BACK

_MOST_READ: Final = 4096
_REFUSAL_STATUSES = frozenset({400, 404, 405, 422, 500, 501})
_TOOL = r"(?:tools?|functions?|tool[ _-]?(?:use|usage|calls?|calling|choice)|function[ _-]?call(?:s|ing)?)"
_NO_PATH = r"(?!\s*[\[.]\s*\w)"  # "tools[0].function.name" is about a tool, not about tools as such
_FIELD = rf"\W+(?:tools|tool_choice|functions)\b{_NO_PATH}"
_NO_EXTRAS = r"extra (?:inputs?|fields?) (?:are )?not (?:permitted|allowed)"
_TOOLS_REFUSED = (
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
_TOOLS = re.compile("|".join(_TOOLS_REFUSED), re.IGNORECASE)
_TOOL_CHOICE = re.compile(r"\btool[_ ]?choice\b", re.IGNORECASE)


def refuses_tools(status: int, text: str) -> bool:
    """Whether an upstream's error refuses tools as such, rather than something in them or elsewhere."""
    return status in _REFUSAL_STATUSES and _TOOLS.search(text[:_MOST_READ]) is not None


def refuses_tool_choice(status: int, text: str) -> bool:
    """Whether an upstream's error is about ``tool_choice``."""
    return status in (400, 404, 422) and _TOOL_CHOICE.search(text[:_MOST_READ]) is not None


_FORMAT: Final = (
    r"(?:response[_ ]?format|json[_ ](?:mode|schema|object|response|output)|response mime ?type|structured output|guided[_ ]\w+"
    r"|grammar)"
)
_NOT_TAKEN: Final = (
    r"(?:not|n't|un)[ -]?(?:yet )?(?:support|available|allow|permit|compatible|implement)|unsupported|unavailable|incompatible"
    r"|cannot|can't|can not|not both|together|at the same time|combin|unknown|unrecogni[sz]ed|unexpected"
)
_NO_FORMAT: Final = re.compile(rf"{_FORMAT}[^\n]{{0,100}}(?:{_NOT_TAKEN})|(?:{_NOT_TAKEN})[^\n]{{0,100}}{_FORMAT}", re.IGNORECASE)
_BAD_SCHEMA: Final = re.compile(r"invalid[_ ](?:json[_ ])?schema", re.IGNORECASE)


def refuses_format(status: int, text: str) -> bool:
    """Whether an upstream's error refuses ``response_format``, other than for an invalid schema."""
    text = text[:_MOST_READ]
    return status in (400, 422, 500) and _NO_FORMAT.search(text) is not None and _BAD_SCHEMA.search(text) is None


_CONSTRAINT: Final = re.compile(
    r"\bgrammars?\b|\bgbnf\b|\bebnf\b|structured[_ ]outputs?|guided[_ ]\w+|response[_ ]?format|json[_ ]schema|\bsamplers?\b",
    re.IGNORECASE,
)


def refuses_constraint(status: int, text: str) -> bool:
    """Whether an upstream's error may be about a constraint that was added to the request."""
    return status in _REFUSAL_STATUSES and _CONSTRAINT.search(text[:_MOST_READ]) is not None


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


def refuses_media(status: int, text: str) -> bool:
    """Whether an upstream's error refuses parts of content that are not text, rather than one of them."""
    text = text[:_MOST_READ]
    return status in _MEDIA_STATUSES and _NO_MEDIA.search(text) is not None and _DAMAGED.search(text) is None


_FIELDS: Final = {
    "reasoning_effort": re.compile(r"reasoning[_ .]?effort|\breasoning\b|\bthink(?:ing)?\b", re.IGNORECASE),
    "service_tier": re.compile(r"\bservice[_ ]tier\b", re.IGNORECASE),
    "stop": re.compile(r"\bstop\b"),
    "stream": re.compile(r"\bstream(?:ing|_options)?\b"),
    "verbosity": re.compile(r"\bverbosity\b"),
}
"""Fields that may be left out of a request that was not the client's own, and how an error names them."""


def refused_fields(status: int, text: str, names: Iterable[str]) -> set[str]:
    """Return the fields among ``names`` that an upstream's error mentions, and that may be left out."""
    text = text[:_MOST_READ]
    known = _FIELDS.keys() & set(names) if status in _REFUSAL_STATUSES else ()
    return {name for name in known if _FIELDS[name].search(text)}


_INVALID_STATUSES: Final = frozenset({400, 422})
_MENTIONED: Final = {name: re.compile(rf"\b{name}\b") for name in SENT_BACK | {"stream_options", "parallel_tool_calls"}} | {
    # A common word in errors: it must be quoted, or part of a path.
    "reasoning": re.compile(r"""(?:['"`]|\.)reasoning\b""")
}
"""Names that may be left out of any request without changing its meaning, and how an error names them."""
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


def demands_stream(status: int, text: str) -> bool:
    """Whether an upstream's error says that the model only streams."""
    return status in _INVALID_STATUSES and _ONLY_STREAMS.search(text) is not None


def demands_reasoning(error: UpstreamError) -> bool:
    """Whether the error says that a message lacks its reasoning."""
    return error.upstream_status in _INVALID_STATUSES and _WANTS_REASONING.search(f"{error} {error.body}") is not None


def complained_of(error: UpstreamError, body: Mapping[str, Any]) -> set[str]:
    """Return the dispensable names in ``body`` that the server's error mentions; empty for other errors."""
    if error.upstream_status not in _INVALID_STATUSES:
        return set()
    said = f"{error} {error.body}"
    return {name for name in dispensable_fields(body) if _MENTIONED[name].search(said)}


def dispensable_fields(body: Mapping[str, Any]) -> set[str]:
    """Return the names in a body that may be left out."""
    found = {"stream_options"} & body.keys()
    if body.get("parallel_tool_calls") is True:
        found.add("parallel_tool_calls")
    for message in body["messages"]:
        found |= SENT_BACK & message.keys()
        for call in message.get("tool_calls") or ():
            found |= SENT_BACK & call.keys()
    return found
