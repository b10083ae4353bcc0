"""Probes of what a server and its model can do: roles, tools, formats, constraints."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from patchbay._text import plural
from patchbay.constraints.backends import Backend
from patchbay.constraints.schemas import compile_schema
from patchbay.doctor.findings import Result
from patchbay.doctor.reachability import HELLO
from patchbay.doctor.server import ExaminedServer
from patchbay.formats import FORMATS
from patchbay.formats.render import WRITERS, format_for, render_calls
from patchbay.models.options import TextOptions
from patchbay.models.roles import Roles
from patchbay.types import ToolCall

MOST_TOKENS: Final = 512
"""Of an answer that has to be read: some models reason first."""
NATIVE: Final = TextOptions(tools="native", choice_rounds=0)
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city."}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
QUESTION: Final = [{"role": "user", "content": "What is the weather in Paris now?"}]
_CALL: Final = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
_AFTER_TOOL: Final = [
    *QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call00001", "content": '{"celsius": 21, "sky": "clear"}'},
]
_INSTRUCTED: Final = [
    {"role": "system", "content": "Answer in English."},
    {"role": "developer", "content": "Answer in one sentence."},
    *HELLO,
]
_TAKEN: Final = {
    Roles.ALL: "system and developer",
    Roles.NO_DEVELOPER: "system, not developer",
    Roles.SYSTEM_FIRST: "one system message in front, not developer",
    Roles.NO_SYSTEM: "neither system nor developer",
}
_NO_WAY: Final = "Nothing: Patchbay "


async def try_roles(server: ExaminedServer) -> Result:
    """Send system and developer messages as the proxy does, and then the result of a tool."""
    asked = await server.ask(NATIVE, messages=_INSTRUCTED, max_tokens=16)
    result = await server.send(messages=_AFTER_TOOL, max_tokens=16)
    if asked.error is not None:
        return "problem", f"System and developer messages fail: {asked.error}", "Look at the model's chat template."
    seen = f"It takes {_TAKEN[asked.accepts.roles]}; the role tool is {'refused' if result.error is not None else 'taken'}."
    if asked.accepts.roles is Roles.ALL and result.error is None:
        return "ok", seen, ""
    return "note", seen, _NO_WAY + "sends instructions in roles that it takes, and with --tools text results as text of the user."


async def try_tools(server: ExaminedServer) -> Result:
    """Send tools natively, with a call required and free, and compare the tokens of the prompt with and without them."""
    facts = server.facts
    required = await server.ask(NATIVE, messages=QUESTION, tools=[TOOL], tool_choice="required", max_tokens=MOST_TOKENS)
    plain = await server.send(messages=QUESTION, max_tokens=16)
    with_tools, without = required.prompt_tokens, plain.prompt_tokens
    is_counted = with_tools is not None and without is not None
    counted = f"{with_tools} prompt tokens with tools, {without} without" if is_counted else "the server counts no tokens"
    if with_tools is not None and without is not None and with_tools <= without + 8 and not required.native_calls:
        facts.tools = "ignored"
        return "note", f"Tools are silently ignored: {counted}, and no call.", "Use --tools text: they are in the prompt then."
    free = await server.ask(NATIVE, messages=QUESTION, tools=[TOOL], max_tokens=MOST_TOKENS)
    if all(getattr(each.error, "upstream_status", None) is not None for each in (required, free)):
        facts.tools = "refused"
        return "note", f"Tools are refused: {free.error}", _NO_WAY + "puts them into the prompt (--tools text says so at once)."
    if not (required.native_calls or free.native_calls):
        facts.tools = "unclear"
        seen = f"The model wrote no native call, even where it was required ({counted})."
        return "note", seen, "Use --tools text, and compare: the model may not be made for its server's tools."
    facts.tools = "native"
    modes = [name for name, each in (("required", required), ("auto", free)) if each.native_calls]
    seen = f"It calls tools natively, with tool_choice {' and '.join(modes)}"
    if required.native_calls and not required.accepts.tool_choice_in_words:
        return "ok", f"{seen}.", ""
    how = "refused" if required.accepts.tool_choice_in_words else "not kept"
    return "note", f"{seen}; tool_choice required is {how}.", _NO_WAY + "asks in words and again where a call is demanded."


async def try_parallel_calls(server: ExaminedServer) -> Result:
    """Ask for two calls and allow one."""
    if server.facts.tools != "native":
        return "skipped", "Only native calls have it: of calls in text, Patchbay takes the first.", ""
    question = [{"role": "user", "content": "Get the weather of Paris and that of Rome, in two calls at once."}]
    asked = await server.send(
        messages=question, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=MOST_TOKENS
    )
    if asked.error is not None:
        return "note", f"parallel_tool_calls false is refused: {asked.error}", _NO_WAY + "takes the first call."
    if len(asked.native_calls) > 1:
        number = plural(len(asked.native_calls), "call")
        return "note", f"parallel_tool_calls false is ignored: {number} came.", _NO_WAY + "takes the first call."
    return "ok", "parallel_tool_calls false is accepted, and one call came.", ""


async def try_format(server: ExaminedServer) -> Result:
    """Put the tools into the prompt, and find the format of the call that the model writes."""
    options = TextOptions(tools="text", constrain="off", choice_rounds=0)
    asked = await server.ask(options, messages=QUESTION, tools=[TOOL], tool_choice="required", max_tokens=MOST_TOKENS)
    expected = format_for(server.model)
    prompted = "the fenced contract" if expected == "auto" else f"the format {expected}"
    if asked.is_cut and not asked.reply.tool_calls:
        return _SPENT
    if not asked.reply.tool_calls:
        seen = f"With the tools in the prompt, by {prompted}, it wrote no call: {asked.text or asked.error}"
        return "note", seen, "Use a server that takes a grammar (calls are forced then), or a larger model."
    server.facts.format = format_of(asked.text, asked.reply.tool_calls, expected)
    return "ok", f"With the tools in the prompt, by {prompted}, it writes calls in the format {server.facts.format}.", ""


def format_of(text: str, calls: tuple[ToolCall, ...], expected: str) -> str:
    """Return the format in which a text has these calls: ``expected`` if it may be that one, "bare" for no known markers."""
    marked = [name for name, writer in WRITERS.items() if writer.markers]
    names = dict.fromkeys((*([] if expected == "auto" else [expected]), "fenced", *marked))
    rendered = {name: _squeezed(render_calls(name, calls)) for name in names}
    found = max(names, key=lambda name: len(rendered[name]) if rendered[name] in _squeezed(text) else 0)
    if rendered[found] in _squeezed(text):
        return found
    openers = ((name, opener) for name in marked for wrapper in FORMATS[name].wrappers for opener in wrapper.openers)
    return next((name for name, opener in openers if opener in text), "bare")


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


_SPENT: Final[Result] = (
    "note",
    f"The model spent {MOST_TOKENS} tokens before its answer, so this is not known.",
    "Turn its reasoning off at the server, and try again.",
)
_ANSWER: Final = {"patchbay": "ok-7"}
_SCHEMA: Final = {
    "type": "object",
    "properties": {"patchbay": {"type": "string", "enum": ["ok-7"]}},
    "required": ["patchbay"],
    "additionalProperties": False,
}


async def try_json_schema(server: ExaminedServer) -> Result:
    """Demand an answer that nothing but the schema suggests."""
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": _SCHEMA}}
    asked = await server.send(messages=HELLO, response_format=schema, max_tokens=MOST_TOKENS)
    advice = _NO_WAY + "says the schema in the prompt where that is needed, checks the answer, and asks again."
    if asked.error is not None:
        server.facts.schema = "refused"
        return "note", f"response_format json_schema is refused: {asked.error}", advice
    if asked.is_cut:
        return _SPENT
    try:
        fits = json.loads(asked.text) == _ANSWER
    except ValueError:
        fits = False
    server.facts.schema = "honoured" if fits else "ignored"
    if fits:
        return "ok", "response_format json_schema is honoured.", ""
    return "note", f"response_format json_schema is ignored: {asked.text}", advice


_GRAMMAR: Final = 'root ::= "patchbay-" [0-9] [0-9]\n'
_KEPT: Final = re.compile(r"patchbay-[0-9][0-9]")


async def try_grammar(server: ExaminedServer) -> Result:
    """Send a grammar in the server's own field; in each known one to a server of an unknown kind."""
    facts = server.facts
    if facts.backend is Backend.SCHEMA:
        return "skipped", f"{facts.kind} takes no grammar, only a JSON Schema.", ""
    refusals: list[str] = []
    for backend in (Backend.LLAMA_CPP, Backend.VLLM, Backend.SGLANG) if facts.backend is None else (facts.backend,):
        asked = await server.send(messages=HELLO, max_tokens=MOST_TOKENS, **backend.fields(_GRAMMAR))
        if _KEPT.fullmatch(asked.text.strip()):
            facts.grammar = "honoured"
            if facts.backend is not None:
                return "ok", f"A grammar in the field {backend.value} is honoured.", ""
            seen = f"A grammar in the field {backend.value} is honoured, but the server is of no kind that is known here"
            return "note", f"{seen}, so Patchbay sends it none.", ""
        if asked.is_cut:
            return _SPENT
        refusals += [] if asked.error is None else [str(asked.error)]
    facts.grammar = "refused" if refusals else "ignored"
    seen = f"Grammars are {facts.grammar}{f': {refusals[0]}' if refusals else '.'}"
    if facts.backend is None:
        return "ok", f"{seen.removesuffix('.')}.", ""
    return "note", seen, "Update the server, or use --constrain off: Patchbay would send it one."


_TAG: Final = re.compile(r'<patchbay>\s*\{\s*"city"\s*:\s*"Paris"\s*\}\s*</patchbay>')


async def try_structural_tag(server: ExaminedServer) -> Result:
    """Send a structural tag to a server that may know it."""
    if server.facts.backend not in (Backend.VLLM, Backend.SGLANG):
        return "skipped", "Structural tags are known of vLLM and SGLang.", ""
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
    tag = {"type": "tag", "begin": "<patchbay>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</patchbay>"}
    tags = {"type": "triggered_tags", "triggers": ["<patchbay>"], "tags": [tag], "at_least_one": True, "stop_after_first": True}
    asked = await server.send(messages=HELLO, max_tokens=MOST_TOKENS, response_format={"type": "structural_tag", "format": tags})
    advice = _NO_WAY + "sends a grammar instead."
    if asked.error is not None:
        return "note", f"Structural tags are refused: {asked.error}", advice
    if asked.is_cut:
        return _SPENT
    if _TAG.search(asked.text) is None:
        return "note", "Structural tags are ignored.", advice
    return "ok", "Structural tags are honoured.", ""


async def choose_constraint(server: ExaminedServer) -> Result:
    """Say how calls of tools in the prompt are constrained at this server."""
    facts = server.facts
    if facts.tools == "native":
        return "ok", "Native calls are the server's own: Patchbay adds no constraint, and checks their arguments.", ""
    if facts.grammar == "honoured" and facts.backend is not None:
        seen = f"With the tools in the prompt, Patchbay sends a grammar of the valid calls ({facts.backend.value})"
        return "ok", f"{seen}: free text or calls with tool_choice auto, nothing but calls with required.", ""
    if facts.backend is Backend.SCHEMA and facts.schema == "honoured":
        seen = "With the tools in the prompt, Patchbay sends a JSON Schema of the call where a call is demanded (tool_choice)"
        return "ok", f"{seen}; with auto nothing is constrained.", ""
    return (
        "note",
        "Nothing constrains calls here: they are read, repaired and checked.",
        "llama.cpp, vLLM and SGLang take grammars.",
    )


_OBJECT: Final = {"type": "object", "properties": {"a": {"type": "string"}}}
_KEYWORDS: Final[Mapping[str, tuple[Mapping[str, Any], ...]]] = {
    "values": ({"type": "string"}, {"enum": ["a"]}, {"const": "a"}),
    "strings": (
        {"type": "string", "minLength": 1},
        {"type": "string", "maxLength": 9},
        {"type": "string", "pattern": "^[a-z]+$"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "regex"},
    ),
    "integers": ({"type": "integer", "minimum": 3}, {"type": "integer", "multipleOf": 5}),
    "numbers": ({"type": "number", "minimum": 3}, {"type": "number", "multipleOf": 5}),
    "objects": (
        {**_OBJECT, "required": ["a"]},
        {**_OBJECT, "additionalProperties": False},
        {**_OBJECT, "minProperties": 1},
        {**_OBJECT, "patternProperties": {"^x": {}}},
        {**_OBJECT, "dependentRequired": {"a": ["b"]}},
    ),
    "arrays": (
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "minItems": 1},
        {"type": "array", "maxItems": 9},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {"const": "a"}},
    ),
    "combinations": (
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
        {"allOf": [_OBJECT, {"required": ["a"]}]},
        {"type": "string", "not": {"const": "a"}},
        {"if": {"const": "a"}, "then": {"type": "string"}, "type": "string"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "https://example.com/schema"},
    ),
}
"""Samples of schemas by class; the keyword that each is about is the first one beside ``type`` and ``properties``."""


async def classify_keywords(server: ExaminedServer) -> Result:
    """Compile a sample of each keyword of a tool's schema, as a constraint does, and say what becomes of it."""
    del server  # one compiler is for all of them
    found: dict[str, list[str]] = {"enforced": [], "checked": [], "refused": []}
    for kind, samples in _KEYWORDS.items():
        names: dict[str, list[str]] = {key: [] for key in found}
        for sample in samples:
            compiled = compile_schema(sample)
            outcome = "refused" if compiled.refused else "checked" if compiled.checked else "enforced"
            keyword = next((key for key in sample if key not in ("type", "properties")), "type")
            detail = f" {sample[keyword]}" if keyword in ("format", "$ref") else ""
            names[outcome].append(f"{keyword}{detail}")
        for outcome, listed in names.items():
            found[outcome] += [f"{kind}: {', '.join(listed)}"] if listed else []
    enforced, checked, refused = ("; ".join(found[key]) or "none" for key in found)
    seen = f"Enforced by a constraint: {enforced}. Checked after the answer: {checked}. Refused, so any object passes: {refused}."
    return "ok", seen, ""


PROBES: Final = {
    "roles": try_roles,
    "tools": try_tools,
    "parallel_tool_calls": try_parallel_calls,
    "format": try_format,
    "json_schema": try_json_schema,
    "grammar": try_grammar,
    "structural_tag": try_structural_tag,
    "constraint": choose_constraint,
    "schema_keywords": classify_keywords,
}
