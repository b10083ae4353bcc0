"""Detect a checkpoint's format by its chat template or its vocabulary: an ordered table of markers, the first hit wins.

Also detects what the template says about reasoning: its markers, and whether the prompt opens it. The template is not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from patchbay.errors import ConfigurationError
from patchbay.formats.catalog import FORMATS
from patchbay.formats.spec import ReasoningMarkers

UNKNOWN = "\0"
"""Placeholder for text that depends on the conversation."""


_STRING = r"'(?:[^'\\]|\\.)*'|" + r'"(?:[^"\\]|\\.)*"'
_TAG = re.compile(r"\{[{%#][-+]?")
_END = {
    "{": re.compile(rf"{_STRING}|[-+]?\}}\}}", re.DOTALL),
    "%": re.compile(rf"{_STRING}|[-+]?%\}}", re.DOTALL),
    "#": re.compile(r"[-+]?#\}"),
}
_KINDS = {"{": "output", "%": "statement", "#": "comment"}
_INDENT = re.compile(r"(?:(?<=\n)|\A)[ \t]+\Z")


def pieces(source: str) -> Iterator[tuple[str, str]]:
    """Split a template into ``text``, ``output`` (the inside of ``{{ }}``), ``statement`` (of ``{% %}``) and ``comment``.

    White space is trimmed as when chat templates are run: a line break behind a statement and the indent before one are removed.
    """
    at, strip = 0, ""
    while found := _TAG.search(source, at):
        sort = found.group()[1]
        end = next((one for one in _END[sort].finditer(source, found.end()) if one.group()[0] not in "'\""), None)
        if end is None:
            break
        text = _stripped(source[at : found.start()], strip)
        if found.group().endswith("-"):
            text = text.rstrip()
        elif sort != "{" and not found.group().endswith("+"):
            text = _INDENT.sub("", text)
        yield "text", text
        yield _KINDS[sort], source[found.end() : end.start()].strip()
        strip = "all" if end.group().startswith("-") else "" if sort == "{" or end.group().startswith("+") else "break"
        at = end.end()
    yield "text", _stripped(source[at:], strip)


def _stripped(text: str, strip: str) -> str:
    return text.lstrip() if strip == "all" else text.removeprefix("\n") if strip else text


_TOKEN = re.compile(rf"{_STRING}|\w+|\s+|.", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_SET = re.compile(r"set\s+(?P<name>\w+)\s*=")
_BRACKETS = frozenset("()")


def _text(tokens: Sequence[str], constants: Mapping[str, str]) -> str:
    """Evaluate an expression: strings and constants are joined, every other part becomes ``UNKNOWN``."""
    texts, part = [], []
    for token in (*tokens, "+"):
        if token not in ("+", "~"):
            if not token.isspace() and token not in _BRACKETS:
                part.append(token)
        elif part:
            strings = [_ESCAPE.sub(_unescaped, token[1:-1]) for token in part if token[0] in "'\"" and len(token) > 1]
            is_text = len(strings) == len(part)
            texts.append("".join(strings) if is_text else constants.get(part[0], UNKNOWN) if len(part) == 1 else UNKNOWN)
            part = []
    return "".join(texts)


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[1], found[1])


_LOOP = "\0for"
"""Marks a loop among conditions."""
_MAX_DEPTH = 50


@dataclass(frozen=True)
class TemplateText:
    """A text that a template can write. ``under``: the conditions and loops around it, from the outside in."""

    text: str
    under: tuple[str, ...]


def template_texts(source: str) -> list[TemplateText]:
    """Return all texts that a template can write, in order. Never fails: one that is nested too deeply is one text."""
    constants, under, texts = _constants(pieces(source)), list[str](), list[TemplateText]()
    for kind, inner in pieces(source):
        word, _, rest = inner.partition(" ") if kind == "statement" else ("", "", "")
        if kind == "text":
            texts.append(TemplateText(inner, tuple(under)))
        elif kind == "output":
            tokens = _TOKEN.findall(inner)
            at = tokens.index("if") if "if" in tokens else len(tokens)
            other = tokens.index("else", at) if "else" in tokens[at:] else len(tokens)
            condition = "".join(tokens[at + 1 : other]).strip()
            texts.append(TemplateText(_text(tokens[:at], constants), (*under, condition) if condition else tuple(under)))
            texts.append(TemplateText(_text(tokens[other + 1 :], constants), (*under, f"not ({condition})")))
        elif word in ("if", "for"):
            under.append(rest.strip() if word == "if" else _LOOP)
            if len(under) > _MAX_DEPTH:
                return [TemplateText(source, ())]
        elif word in ("elif", "else") and under and under[-1] != _LOOP:
            under[-1] = rest.strip() if word == "elif" else f"not ({under[-1]})"
        elif word in ("endif", "endfor") and under:
            under.pop()
    return [one for one in texts if one.text]


def _constants(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the variables that a template sets to one text only."""
    constants: dict[str, str] = {}
    for kind, inner in found:
        if kind == "statement" and (named := _SET.match(inner)):
            value = _text(_TOKEN.findall(inner[named.end() :]), constants)
            constants[named["name"]] = value if constants.get(named["name"], value) == value else UNKNOWN
    return constants


@dataclass(frozen=True)
class Ending:
    """Whether the prompt for a reply ends in open reasoning. ``open`` None: under the condition ``when``; "": unknown."""

    open: bool | None
    when: str = ""


def ending(texts: Sequence[TemplateText], openers: Sequence[str], closers: Sequence[str]) -> Ending:
    """Find out whether the prompt for a reply ends between an opener and its closer: its last marker decides."""
    prompt = _generation_prompt(texts)
    if not prompt:
        return Ending(open=None)
    markers = re.compile("|".join(map(re.escape, sorted({*openers, *closers}, key=len, reverse=True))) or "(?!)")
    ways, last = {False: ""}, ""
    for one in prompt:
        if found := markers.findall(one.text):
            is_open, when = found[-1] in openers, " and ".join(condition for condition in one.under if condition != _LOOP)
            everywhere = not one.under or (when == f"not ({last})" and ways.get(is_open) == last)
            ways = {way: each for way, each in ways.items() if each != when and not everywhere}
            ways[is_open], last = "" if everywhere else when, when
    if len(ways) == 1:
        return Ending(open=True in ways)
    return Ending(open=None, when=ways[True] or (ways[False] and f"not ({ways[False]})"))


def _generation_prompt(texts: Sequence[TemplateText]) -> list[TemplateText]:
    """Return the texts written only for a reply, else those behind the last loop; their conditions are those inside."""
    asking = [
        (index, depth)
        for index, one in enumerate(texts)
        for depth, condition in enumerate(one.under)
        if "add_generation_prompt" in condition and not condition.startswith("not ")
    ]
    if not asking:
        loops = [index for index, one in enumerate(texts) if _LOOP in one.under]
        return list(texts[loops[-1] + 1 :]) if loops else []
    last, depth = asking[-1]
    around = texts[last].under[: depth + 1]
    first = last
    while first and texts[first - 1].under[: depth + 1] == around:
        first -= 1
    return [TemplateText(one.text, one.under[depth + 1 :]) for one in texts[first : last + 1]]


@dataclass(frozen=True)
class Rule:
    """Evidence for a format: ``every`` marker, one of ``some`` (if any are given), and none of ``lacks``.

    ``tokens``: the markers are tokens that no other format has, so that a vocabulary is enough.
    """

    format: str
    every: tuple[str, ...] = ()
    some: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    tokens: bool = False

    def __str__(self) -> str:
        parts = [*map(repr, self.every), *([" or ".join(map(repr, self.some))] if self.some else [])]
        return " and ".join(parts) + "".join(f", but not {marker!r}" for marker in self.lacks)

    def evidence(self, text: str) -> tuple[str, ...]:
        """Return the markers that were found; () if the rule does not apply."""
        some = tuple(marker for marker in self.some if marker in text)[:1]
        if (self.some and not some) or any(marker in text for marker in self.lacks):
            return ()
        return self.every + some if all(marker in text for marker in self.every) else ()


RULES: tuple[Rule, ...] = (
    Rule("iquest_q1", ("<|iquest_assistant|>",), tokens=True),
    Rule("gigachat35", ("｜GCML｜",), tokens=True),
    Rule("k2_horizon", some=("<ifm|tool_call>", "<ifm|tool_calls>"), tokens=True),
    Rule("apertus", some=("<|tools_prefix|>", "<|inner_prefix|>"), tokens=True),
    Rule("minimax_m3", some=("]<]minimax[>[", "<mm:think>"), tokens=True),
    Rule("minimax_m2", ("<minimax:tool_call>",), tokens=True),
    Rule("minimax_m1", ("<tool_calls>\n{", "<end_of_sentence>")),
    Rule("gemma4", some=("<|tool_call>call:", "<|channel>"), tokens=True),
    Rule("functiongemma", ("<start_function_call>",), tokens=True),
    Rule("muse", ("<atem:function_calls>",)),
    Rule("solar_open", ("<|tool_call:begin|>",), tokens=True),
    Rule("inkling", ("<|content_invoke_tool_json|>",), tokens=True),
    Rule("beam", ("<|channel|>", "<rfl:parameter")),
    Rule("harmony", ("<|channel|>",), tokens=True),
    Rule("functionary_v32", (">>>all",)),
    Rule("functionary_v31", ("<function=",), lacks=("<parameter=",)),
    Rule("kimi_k2", ("<|tool_calls_section_begin|>",), tokens=True),
    Rule("kimi_k3", ("<|open|>", "<|end_of_msg|>"), tokens=True),
    Rule("ling3", ("<role>ASSISTANT</role>", "<arg_key>")),
    Rule("deepseek_v41", some=("<｜DSML｜ calls>", "<｜DSML｜ invoke")),
    Rule("deepseek_v4", ("<｜DSML｜tool_calls>",)),
    Rule("deepseek_v32", some=("<｜DSML｜function_calls>", "<｜DSML｜invoke")),
    Rule("deepseek_v3_json", ("<｜tool▁sep｜>",), some=("function<｜tool▁sep｜>", "```json")),
    Rule("deepseek_v31", ("<｜tool▁sep｜>",)),
    Rule("mistral_args", ("[TOOL_CALLS]", "[ARGS]"), tokens=True),
    Rule("mistral_json", ("[TOOL_CALLS]",), tokens=True),
    Rule("cohere_command", ("<|START_ACTION|>",), tokens=True),
    Rule("command_r_plus", ("Action:\n```json", "<|CHATBOT_TOKEN|>")),
    Rule("lfm2", some=("<|tool_call_start|>", "List of tools: ["), tokens=True),
    Rule("step3", ("<steptml:invoke",)),
    Rule("internlm2", ("<|action_start|>",), tokens=True),
    Rule("gigachat3", some=("<|function_call|>", "function call<|role_sep|>")),
    Rule("gigachat3", ("'function call'", "<|role_sep|>")),
    Rule("hunyuan_v3", some=("<tool_sep>", "<tool_sep:"), tokens=True),
    Rule("hunyuan_v3", ("<arg_key", "<tool_calls")),
    Rule("poolside_v1", ("<arg_key>", "unescaped XML-like object")),
    Rule("spark25", ("<arg_key>", "<|Bot|>")),
    Rule("glm47", ("<arg_key>", "</arg_key><arg_value>")),
    Rule("glm45", ("<arg_key>",)),
    Rule("seed_oss", ("<seed:tool_call>",), tokens=True),
    Rule("mimo", ("<tool_call><function=", "<parameter="), lacks=("<tool_call>\n<function=",)),
    Rule("qwen3_coder", ("<function=", "<parameter=")),
    Rule("minicpm5", ("<function name=", "<param name=")),
    Rule("granite3", ("<|tool_call|>", "<|start_of_role|>")),
    Rule("phi4_mini", some=("<|/tool_call|>", "<|tool_call|>")),
    Rule("ernie45", ("<tool_call>", "<response>\n")),
    Rule("hermes", ("<tool_call>",), lacks=("<tool_calls>[",)),
    Rule("nemotron_v2", ("<TOOLCALL>",)),
    Rule("apriel", ("<tool_calls>[", "[BEGIN FINAL RESPONSE]")),
    Rule("hunyuan_a13b", ("<tool_calls>[", "<answer>")),
    Rule("jamba", ("<tool_calls>[",)),
    Rule("plamo3", some=("<|plamo:begin_tool_request:plamo|>", "<|plamo:begin_tool_request")),
    Rule("dots", ("<dots_function_call>",)),
    Rule("longcat", ("<longcat_tool_call>",)),
    Rule("claude_xml", ("<function_calls>", "<invoke")),
    Rule("olmo3", ("<function_calls>",)),
    Rule("firefunction_v2", ("functools[", "<|start_header_id|>")),
    Rule("phi4_mini", ("functools[",)),
    Rule("llama3_json", some=("<|python_tag|>", '"parameters": dictionary of argument name')),
)
"""The rules, in order. A rule stands before those whose markers it shares."""


@dataclass(frozen=True)
class Reasoning:
    """Reasoning according to a chat template: its markers, and whether the prompt opens it.

    ``prefilled`` None: only under the condition ``when`` (in the template's words), or the template does not say ("").
    """

    opener: str
    closer: str
    prefilled: bool | None
    when: str = ""


@dataclass(frozen=True)
class Recognition:
    """Result of detection. ``format`` None: nothing found.

    ``source``: where. ``evidence``: the markers. ``rule``: the rule that applied.
    """

    format: str | None = None
    source: str = ""
    evidence: tuple[str, ...] = ()
    rule: str = ""
    reasoning: tuple[Reasoning, ...] = ()


def recognise(config: Mapping[str, object]) -> Recognition:
    """Detect by a parsed ``tokenizer_config.json`` (or a ``tokenizer.json``: its added tokens).

    The chat template may be a text or a list of named ones, of which the one for tools comes first. Raises ConfigurationError if
    it is neither.
    """
    found = Recognition()
    for name, source in _templates(config.get("chat_template")):
        found = recognise_template(source, name)
        if found.format is not None:
            break
    if found.format is None:
        return replace(_by_vocabulary(config), reasoning=found.reasoning)
    return found


def recognise_template(source: str, name: str = "chat template") -> Recognition:
    """Detect by one chat template's source."""
    texts = template_texts(source)
    # Markers may be joined from pieces, or stand in text that is compared but not written: both count.
    text = "".join(one.text for one in texts) + "\n" + source.replace("\\n", "\n").replace('\\"', '"')
    for rule in RULES:
        if evidence := rule.evidence(text):
            reasoning = tuple(_reasoning(texts, text, rule.format))
            return Recognition(rule.format, name, evidence, str(rule), reasoning)
    return Recognition(source=name, reasoning=tuple(_reasoning(texts, text, None)))


def _by_vocabulary(config: Mapping[str, object]) -> Recognition:
    text = "\n".join(_tokens(config))
    for rule in RULES:
        if rule.tokens and (evidence := rule.evidence(text)):
            return Recognition(rule.format, "vocabulary", evidence, str(rule))
    return Recognition()


def _reasoning(texts: Sequence[TemplateText], text: str, format: str | None) -> Iterator[Reasoning]:  # noqa: A002
    """Yield the reasoning markers in a template: those of its format, or any format's if it has none of them."""
    rows = [FORMATS[format]] if format in FORMATS else []
    for known in (rows, list(FORMATS.values())):
        found = dict.fromkeys(markers for row in known for markers in row.reasoning_markers)
        seen = [markers for markers in found if _has(text, markers)]
        for markers in seen:
            # A reply begins with reasoning that has no opener, as if the prompt had opened it.
            found_ending = ending(texts, markers.openers, markers.closers) if markers.openers else Ending(open=True)
            yield Reasoning("".join(markers.openers[:1]), "".join(markers.closers[:1]), found_ending.open, found_ending.when)
        if seen:
            return


def _has(text: str, markers: ReasoningMarkers) -> bool:
    """True if a template contains these markers. A closing tag is enough: many templates only cut reasoning off."""
    enough = tuple(closer for closer in markers.closers if closer.startswith(("</", "[/")) or not markers.openers)
    return any(mark in text for mark in markers.openers + enough)


def _templates(value: object) -> Iterator[tuple[str, str]]:
    """Yield each template with its name; the one for tools first."""
    if value is None:
        return
    if isinstance(value, str):
        yield "chat template", value
        return
    entries = value if isinstance(value, list) else []
    named = [(entry.get("name"), entry.get("template")) for entry in entries if isinstance(entry, Mapping)]
    if not isinstance(value, list) or len(named) != len(entries):
        raise ConfigurationError(f"chat_template must be text or a list of named templates, not {type(value).__name__}.")
    for name, template in sorted(named, key=lambda one: one[0] != "tool_use"):
        if not isinstance(name, str) or not isinstance(template, str):
            raise ConfigurationError("chat_template must be text or a list of tables, each with 'name' and 'template'.")
        yield f"chat template {name!r}", template


def _tokens(config: Mapping[str, object]) -> Iterator[str]:
    """Yield the tokens that were added to the vocabulary."""
    decoder = config.get("added_tokens_decoder")
    entries = [*(decoder.values() if isinstance(decoder, Mapping) else ()), *_listed(config.get("added_tokens"))]
    for entry in (*entries, *_listed(config.get("additional_special_tokens")), *_listed(config.get("extra_special_tokens"))):
        token = entry.get("content") if isinstance(entry, Mapping) else entry
        if isinstance(token, str):
            yield token


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, Mapping) else []
