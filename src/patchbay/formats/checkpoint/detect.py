"""Which format a checkpoint writes, by its chat template or its vocabulary: a table of markers, in order, the first hit wins.

Also what the template says of reasoning: its markers, and whether the prompt opens it. The template is not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from patchbay.errors import ConfigurationError
from patchbay.formats.catalog import FORMATS
from patchbay.formats.checkpoint.declarations import kind_of
from patchbay.formats.checkpoint.response_template import ResponseTemplate, response_template
from patchbay.formats.spec import ReasoningMarkers

UNKNOWN = "\0"
"""Stands for what only a conversation tells."""


@dataclass(frozen=True)
class Choice:
    """One of several ways on, each under its condition (as written; "" under all that the others leave)."""

    ways: tuple[tuple[str, tuple[Node, ...]], ...]


@dataclass(frozen=True)
class Loop:
    """What is written any number of times."""

    nodes: tuple[Node, ...]


Node = str | Choice | Loop

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
    """Cut into ``text``, ``output`` (the inside of ``{{ }}``), ``statement`` (of ``{% %}``) and ``comment``.

    White space is trimmed as it is where chat templates are run: a line break behind a statement and the indent before one go.
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
_MAX_DEPTH = 50


def texts(expression: str, constants: Mapping[str, str | None]) -> list[Node]:
    """What an expression stands for: strings, named constants, what is joined of them, one or the other."""
    return _read(_TOKEN.findall(expression), constants, 0)


def _read(tokens: Sequence[str], constants: Mapping[str, str | None], depth: int) -> list[Node]:
    if depth == _MAX_DEPTH:
        return [UNKNOWN]
    at = _find(tokens, ("if",))
    if at >= 0:
        found = tokens[at + 1 :]
        other = _find(found, ("else",))
        condition, rest = (found[:other], found[other + 1 :]) if other >= 0 else (found, [])
        first, second = (tuple(_read(part, constants, depth + 1)) for part in (tokens[:at], rest))
        return [Choice((("".join(condition).strip(), first), ("", second)))]
    nodes: list[Node] = []
    while True:
        at = _find(tokens, ("+", "~"))
        for node in _one(tokens[: at if at >= 0 else None], constants, depth):
            if isinstance(node, str) and nodes and isinstance(nodes[-1], str):
                nodes[-1] += node
            else:
                nodes.append(node)
        if at < 0:
            return nodes
        tokens = tokens[at + 1 :]


def _one(tokens: Sequence[str], constants: Mapping[str, str | None], depth: int) -> list[Node]:
    tokens = [token for token in tokens if not token.isspace()]
    if not tokens:
        return []
    if all(token[0] in "'\"" and len(token) > 1 for token in tokens):
        return ["".join(_ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), token[1:-1]) for token in tokens)]
    if len(tokens) == 1:
        return [constants.get(tokens[0]) or UNKNOWN]
    if tokens[0] == "(" and [index for index, _ in _outside(tokens)] == [0, len(tokens) - 1]:
        return _read(tokens[1:-1], constants, depth + 1)
    return [UNKNOWN]


def _find(tokens: Sequence[str], words: tuple[str, ...]) -> int:
    return next((index for index, token in _outside(tokens) if token in words), -1)


def _outside(tokens: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The tokens that stand in no bracket, and the brackets around the others."""
    depth = 0
    for index, token in enumerate(tokens):
        depth -= token in (")", "]", "}")
        if not depth:
            yield index, token
        depth += token in ("(", "[", "{")


_SET = re.compile(r"set\s+(?P<name>\w+)\s*=")


@dataclass(frozen=True)
class Ending:
    """How the prompt for a reply ends: in open reasoning or not. ``open`` None: under the condition ``when``; "": not known."""

    open: bool | None
    when: str = ""


class ChatTemplate:
    """A template's source, cut up. Reading it never fails: anything else is text."""

    def __init__(self, source: str) -> None:
        found = list(pieces(source))
        self._constants: dict[str, str | None] = {}
        for kind, inner in found:
            if kind == "statement" and (named := _SET.match(inner)):
                self._remember(named["name"], inner[named.end() :])
        self._pieces = iter(found)
        self._stopped = "begin"
        self._nodes: tuple[Node, ...] = ()
        try:
            while self._stopped:  # what ends without a beginning ends nothing
                self._nodes += self._block()
            self.written = "".join(_flat(self._nodes))
            """All texts that the template can write, one after the other; what is not known is ``UNKNOWN``."""
        except RecursionError:
            self._nodes, self.written = (), source

    def ending(self, openers: Sequence[str], closers: Sequence[str]) -> Ending:
        """True if the prompt that asks for a reply ends between an opener and its closer."""
        prompts = list(_generation_prompts(self._nodes))
        nodes = prompts[-1] if prompts else _behind_last_loop(self._nodes)
        if not any(_flat(nodes)):
            return Ending(open=None)
        ends = _Ends(openers, closers).after(nodes, {False: ""})
        return Ending(open=True in ends) if len(ends) == 1 else Ending(open=None, when=ends[True])

    def _remember(self, name: str, expression: str) -> None:
        nodes = texts(expression, self._constants)
        value = nodes[0] if len(nodes) == 1 and isinstance(nodes[0], str) and UNKNOWN not in nodes[0] else None
        # A name that is given two values is no constant.
        self._constants[name] = value if self._constants.get(name, value) == value else None

    def _block(self) -> tuple[Node, ...]:
        """Read up to the statement that ends or divides a block; it is in ``_stopped``, which is "" at the end."""
        nodes: list[Node] = []
        for kind, inner in self._pieces:
            word, _, rest = inner.partition(" ") if kind == "statement" else ("", "", "")
            if kind == "text":
                nodes.append(inner)
            elif kind == "output":
                nodes += texts(inner, self._constants)
            elif word == "if":
                nodes.append(self._choice(rest))
            elif word == "for":
                nodes.append(self._loop())
            elif word in ("elif", "else") or word.startswith("end"):
                self._stopped = inner
                return tuple(nodes)
        self._stopped = ""
        return tuple(nodes)

    def _choice(self, condition: str) -> Choice:
        ways = [(condition.strip(), self._inside("endif"))]
        while self._stopped.startswith("elif"):
            condition = self._stopped.removeprefix("elif").strip()
            ways.append((condition, self._inside("endif")))
        ways.append(("", self._inside("endif") if self._stopped.startswith("else") else ()))
        return Choice(tuple(ways))

    def _loop(self) -> Loop:
        nodes = self._inside("endfor")
        return Loop(nodes + self._inside("endfor") if self._stopped.startswith("else") else nodes)

    def _inside(self, end: str) -> tuple[Node, ...]:
        """Read up to ``end`` or a division; the ends of blocks that are not found apart here (macros, sets) are passed over."""
        nodes = self._block()
        while self._stopped and not self._stopped.startswith((end, "elif", "else")):
            nodes += self._block()
        return nodes


class _Ends:
    """True if texts end inside of reasoning."""

    def __init__(self, openers: Sequence[str], closers: Sequence[str]) -> None:
        self._openers = frozenset(openers)
        self._marks = re.compile("|".join(map(re.escape, sorted({*openers, *closers}, key=len, reverse=True))) or "(?!)")

    def after(self, nodes: Iterable[Node], before: Mapping[bool, str]) -> dict[bool, str]:
        """The ways it can end, open or not, each with a condition that leads there ("" for the only one)."""
        states = dict(before)
        for node in nodes:
            if isinstance(node, str):
                marker_set = self._marks.findall(node)
                states = {marker_set[-1] in self._openers: ""} if marker_set else states
            elif isinstance(node, Loop):
                states = {**self.after(node.nodes, states), **states}
            else:
                states = self._chosen(node, states)
        return states

    def _chosen(self, choice: Choice, states: Mapping[bool, str]) -> dict[bool, str]:
        found: dict[bool, str] = {}
        passed: list[str] = []
        for condition, nodes in choice.ways:
            alternative = condition or " and ".join(f"not ({other})" for other in passed)
            passed.append(condition)
            for is_open, inner in self.after(nodes, dict.fromkeys(states, "")).items():
                found.setdefault(is_open, " and ".join(part for part in (states.get(is_open, ""), alternative, inner) if part))
        return found if len(found) > 1 else dict.fromkeys(found, "")


def _generation_prompts(nodes: Iterable[Node]) -> Iterator[tuple[Node, ...]]:
    """What is written only where a reply is asked for."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from _generation_prompts(node.nodes)
        elif isinstance(node, Choice):
            for condition, inner in node.ways:
                if "add_generation_prompt" in condition and not condition.startswith("not ") and any(_flat(inner)):
                    yield inner
                else:
                    yield from _generation_prompts(inner)


def _behind_last_loop(nodes: Sequence[Node]) -> Sequence[Node]:
    loops = [index for index, node in enumerate(nodes) if isinstance(node, Loop)]
    return nodes[loops[-1] + 1 :] if loops else ()


def _flat(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
        elif isinstance(node, Loop):
            yield from _flat(node.nodes)
        else:
            for _, inner in node.ways:
                yield from _flat(inner)


@dataclass(frozen=True)
class Rule:
    """What speaks for a format: ``every`` marker is there, one of ``some`` (where any are named), and none of ``lacks``.

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
        """The markers that were found; () where the rule does not hold."""
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
"""The table. A rule stands before those whose markers it shares."""


@dataclass(frozen=True)
class Reasoning:
    """What a chat template says of reasoning: its marks, and whether the prompt opens it.

    ``prefilled`` None: only under the condition ``when`` (as the template words it), or the template does not say ("").
    """

    opener: str
    closer: str
    prefilled: bool | None
    when: str = ""


@dataclass(frozen=True)
class Recognition:
    """What was found. ``format`` None: nothing. ``source``: where, ``evidence``: the markers, ``rule``: what they had to meet.

    With a ``response_template`` the checkpoint declares its format itself, and ``format`` is what its chat template looks like.
    ``problem``: why a declared ``response_template`` cannot be used.
    """

    format: str | None = None
    source: str = ""
    evidence: tuple[str, ...] = ()
    rule: str = ""
    reasoning: tuple[Reasoning, ...] = ()
    response_template: ResponseTemplate | None = None
    problem: str = ""


def recognise(config: Mapping[str, object]) -> Recognition:
    """Recognise by a parsed ``tokenizer_config.json`` (or a ``tokenizer.json``: its added tokens).

    The chat template may be a text or a list of named ones; the one for tools comes first. Raises ConfigurationError where it is
    neither.
    """
    declared, problem = None, ""
    if config.get("response_template") is not None:
        try:
            declared = response_template(config["response_template"])
        except ConfigurationError as error:
            problem = str(error)
    found = Recognition()
    for name, source in _templates(config.get("chat_template")):
        found = recognise_template(source, name)
        if found.format is not None:
            break
    if found.format is None:
        found = replace(_by_vocabulary(config), reasoning=found.reasoning)
    return replace(found, response_template=declared, problem=problem)


def recognise_template(source: str, name: str = "chat template") -> Recognition:
    """Recognise by one chat template's source."""
    template = ChatTemplate(source)
    # Markers may be put together from pieces, or stand in what is not written but compared: both count.
    text = template.written + "\n" + source.replace("\\n", "\n").replace('\\"', '"')
    for rule in RULES:
        if evidence := rule.evidence(text):
            reasoning = tuple(_reasoning(template, text, rule.format))
            return Recognition(rule.format, name, evidence, str(rule), reasoning)
    return Recognition(source=name, reasoning=tuple(_reasoning(template, text, None)))


def _by_vocabulary(config: Mapping[str, object]) -> Recognition:
    text = "\n".join(_tokens(config))
    for rule in RULES:
        if rule.tokens and (evidence := rule.evidence(text)):
            return Recognition(rule.format, "vocabulary", evidence, str(rule))
    return Recognition()


def _reasoning(template: ChatTemplate, text: str, format: str | None) -> Iterator[Reasoning]:  # noqa: A002
    """The marks of reasoning in a template: those of its format, or any format's where it has none of them."""
    rows = [FORMATS[format]] if format in FORMATS else []
    for known in (rows, list(FORMATS.values())):
        found = dict.fromkeys(thought for row in known for thought in row.reasoning_markers)
        seen = [thought for thought in found if _has(text, thought)]
        for thought in seen:
            # Reasoning without an opener is what a reply begins with: as if the prompt had opened it.
            ending = template.ending(thought.openers, thought.closers) if thought.openers else Ending(open=True)
            yield Reasoning("".join(thought.openers[:1]), "".join(thought.closers[:1]), ending.open, ending.when)
        if seen:
            return


def _has(text: str, thought: ReasoningMarkers) -> bool:
    """True if a template writes or looks for marks. A closing tag is enough: many templates only cut reasoning off."""
    enough = tuple(closer for closer in thought.closers if closer.startswith(("</", "[/")) or not thought.openers)
    return any(mark in text for mark in thought.openers + enough)


def _templates(value: object) -> Iterator[tuple[str, str]]:
    """Each template with its name; the one for tools first."""
    if value is None:
        return
    if isinstance(value, str):
        yield "chat template", value
        return
    entries = value if isinstance(value, list) else []
    named = [(entry.get("name"), entry.get("template")) for entry in entries if isinstance(entry, Mapping)]
    if not isinstance(value, list) or len(named) != len(entries):
        raise ConfigurationError(f"chat_template must be text or a list of named templates, not {kind_of(value)}.")
    for name, template in sorted(named, key=lambda one: one[0] != "tool_use"):
        if not isinstance(name, str) or not isinstance(template, str):
            raise ConfigurationError("chat_template must be text or a list of tables, each with 'name' and 'template'.")
        yield f"chat template {name!r}", template


def _tokens(config: Mapping[str, object]) -> Iterator[str]:
    """The tokens that a configuration tells of: those that were added to the vocabulary."""
    decoder = config.get("added_tokens_decoder")
    entries = [*(decoder.values() if isinstance(decoder, Mapping) else ()), *_listed(config.get("added_tokens"))]
    for entry in (*entries, *_listed(config.get("additional_special_tokens")), *_listed(config.get("extra_special_tokens"))):
        token = entry.get("content") if isinstance(entry, Mapping) else entry
        if isinstance(token, str):
            yield token


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, Mapping) else []
