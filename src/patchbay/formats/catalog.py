"""All known formats: a row of data for each, and lookup by name.

A new format is one row here. Prose and code fences are not formats: they are read with any format.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache, partial
from itertools import product
from typing import Any, NoReturn

from patchbay.errors import ConfigurationError
from patchbay.formats.codecs.elements import TOKEN, token_prefixes
from patchbay.formats.codecs.named import CLOSE, OPEN, SEP, attributes
from patchbay.formats.codecs.prompted import GemmaAtStart, NameOnLine, NexusAtStart, PromptWords, StrippedHarmony
from patchbay.formats.spec import (
    AnswerMarkers,
    Body,
    Channels,
    Format,
    Header,
    Kind,
    ReasoningMarkers,
    Wrapper,
    first_part,
    last_part,
)
from patchbay.formats.values.tool_names import ToolRules


def tags(*names: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the openers and the closers of tags with these names: ``<name>``, ``</name>``."""
    return tuple(f"<{name}>" for name in names), tuple(f"</{name}>" for name in names)


# Shared by many families: the usual reasoning markers, and the special tokens of the usual chat templates.

THINK = ReasoningMarkers(*tags("think"))
TOOL_CALL = Wrapper(*tags("tool_call"))
TOOL_CALLS = Wrapper(*tags("tool_calls"))

TURNS = (
    "<|im_start|>assistant", "<|im_start|>", "<|im_end|>",  # ChatML
    "<|start_header_id|>assistant<|end_header_id|>", "<|start_header_id|>", "<|end_header_id|>",  # Llama 3
    "<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>",
    "<|header_start|>assistant<|header_end|>", "<|eot|>", "<|eom|>",  # Llama 4
    # what most of the others end with
    "<|end_of_text|>", "<|endoftext|>", "<|end_of_turn|>", "<|end_of_sentence|>", "<|endofturn|>", "[|endofturn|]", "<|end|>",
    "<|return|>", "<|stop|>", "<|eos|>", "</s>", "<eos>", "[EOS]",
    "<start_of_turn>model", "<end_of_turn>",  # Gemma
    # DeepSeek, and templates that write its tokens with ASCII pipes
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜Assistant｜>", "<|end▁of▁sentence|>",
    "<|start_of_role|>assistant<|end_of_role|>",  # Granite
    "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>",  # Cohere
    "<end_of_sentence>",  # MiniMax M1
)  # fmt: skip
"""Tokens that begin and end a turn."""


# Openers that are part of the call itself: they are read even if the wrapper around them was left out.

_WHOLE_OPENER = 64
"""Longer than any opener: the whole opener belongs to the call."""

FUNCTION = Wrapper(
    ("<function=", "<function =", "< function=", "< function =", "<function name=", "<function\u0120name=", "<functionname="),
    ("</function>",),
    body_prefix_len=_WHOLE_OPENER,
)
INVOKE = Wrapper(("<invoke name=", "<invoke>"), ("</invoke>",), body_prefix_len=_WHOLE_OPENER)


def opening(*openers: str, closers: tuple[str, ...]) -> Wrapper:
    """Return a wrapper for a family's own spelling of a call's opener."""
    return Wrapper(openers, closers, body_prefix_len=_WHOLE_OPENER)


INTERPRETERS = ("python", "code_interpreter", "ipython")
"""Usual names of tools that run code."""


def _llama_name(header: str) -> str:
    """Return the name of a built-in tool, which is called as an object's method: ``brave_search.call(query="…")``."""
    return last_part(header).removesuffix(".call")


PYTHON_TAG = Wrapper(("<|python_tag|>",), name=_llama_name, code_tools=INTERPRETERS)


PIPED = Wrapper(("<|tool_call|>",), ("<|/tool_call|>",))
"""Granite 3.0 leaves the closer out, Phi-4-mini writes it, and others mix its markers with the plain ones."""
GLAIVE = Wrapper(("<functioncall>", "<function>"), ("</functioncall>", "</function>"))
"""As in Glaive's training data, and from models trained on it."""
BRACKETED = Wrapper(("[TOOL_CALL]",), ("[/TOOL_CALL]",))
"""As MiniMax writes some calls, with the keys "tool" and "args"."""
SERVED_HISTORY = Wrapper(("[Calling tool: ",), closing_char="]")
"""As some servers write earlier calls into the prompt; models continue in the same way."""


_LIST_WRAPPERS = (TOOL_CALLS, TOOL_CALL)
"""Models confuse the one they were trained on with the other."""


_FUNCTOOLS = Wrapper(("functools[", "functools ["), body_prefix_len=1)


_COHERE_KINDS = {"<|START_THINKING|>": Kind.REASONING, "<|START_RESPONSE|>": Kind.CONTENT, "<|START_TEXT|>": Kind.CONTENT}
_THINKING_ENDS = "<|END_THINKING|>"


_TO_TOOL = "-> tool/function_call\n"
_HYPERCLOVA_ENDS = ("<|im_end|>\n<|im_start|>assistant", "<|im_end|>")


_MISTRAL: dict[str, Any] = {
    "wrappers": (Wrapper(("[TOOL_CALLS]",), separators=("[CALL_ID]", "[ARGS]"), name=first_part),),
    "reasoning_markers": (ReasoningMarkers(("[THINK]",), ("[/THINK]",), special=True), THINK),
    "tokens": ("[/TOOL_CALLS]",),
}


_PIPES = ("｜", "|")
_GAPS = ("▁", "_", " ", "\\_")


def _deepseek_token(*words: str) -> tuple[str, ...]:
    """Return the spellings of ``<｜tool▁call▁begin｜>``, given its words."""
    return tuple(f"<{pipe}{gap.join(words)}{pipe}>" for pipe, gap in product(_PIPES, _GAPS))


_DEEPSEEK_SECTION = Wrapper(_deepseek_token("tool", "calls", "begin"), _deepseek_token("tool", "calls", "end"))
_DEEPSEEK_CALL = Wrapper(
    _deepseek_token("tool", "call", "begin"), _deepseek_token("tool", "call", "end"), separators=_deepseek_token("tool", "sep")
)
_ECHOES = AnswerMarkers(
    ("<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>"), ("<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>"), special=True
)
"""Around a tool's output that a model repeats."""


_STEP_SEPARATORS = _deepseek_token("tool", "sep")


_KIMI_INDEX = re.compile(r":\d{1,9}$")


def _kimi_name(header: str) -> str:
    """Return the name in ``functions.get_weather:0``."""
    return _KIMI_INDEX.sub("", last_part(header)).removeprefix("functions.")


def _kimi_body(header: Header) -> Body | None:
    """Return the body of one of K3's elements."""
    tag = header.text(OPEN) or header.text(CLOSE)
    name = tag.strip().partition(" ")[0]
    if not header.has(OPEN):
        return Body(Kind.NOTHING) if name in _KIMI_ELEMENTS or not header.body_start else None
    if name == "call":
        return Body(Kind.NAMED, attributes(tag).get("tool", ""))
    return Body(_KIMI_ELEMENTS.get(name, Kind.NOTHING)) if name in _KIMI_ELEMENTS or not header.body_start else None


_KIMI_ELEMENTS = {
    "message": Kind.NOTHING,
    "think": Kind.REASONING,
    "response": Kind.CONTENT,
    "tools": Kind.NOTHING,
    "call": Kind.NAMED,
    "argument": Kind.NOTHING,
}
_KIMI_THINK_END = f"{CLOSE}think{SEP}"


def _plamo_token(name: str) -> tuple[str, ...]:
    return (f"<|plamo:{name}:plamo|>",)


_MINIMAX_TOKENS = ("]~b]ai", "]~b]", "[e~[")


_DSML_WORDS = ("function_calls", "tool_calls", "calls", "toolcalls", "tool_call", "tool")


def _dsml_wrappers(name: str) -> tuple[Wrapper, ...]:
    """Return the wrappers of the markup ``name``, including what is left of them without their token, or without the bracket."""
    tokens = tuple(prefix + blank for prefix, blank in product(token_prefixes(name), ("", " ")))
    stripped = ("function_calls", " function_calls", "tool_calls", " tool_calls", " calls")
    words = tuple(token + word for token, word in product(tokens, _DSML_WORDS))
    tails = (*(word + end for word, end in product(words, (">", "\n"))), *(f"{word}>" for word in stripped))
    return (
        Wrapper(tuple(f"<{tail}" for tail in tails), tuple(f"</{tail}" for tail in tails)),
        opening(*(f"<{token}invoke" for token in tokens), closers=tuple(f"</{token}invoke>" for token in tokens)),
        INVOKE,
    )


_DSML = _dsml_wrappers("DSML")


_ANTML = "antml:"


_GLM_TOKENS = ("<|assistant|>", "<|user|>", "<|observation|>")


_HUNYUAN: dict[str, Any] = {
    "wrappers": (
        TOOL_CALLS,
        TOOL_CALL,
        Wrapper(("<tool_calls:",), ("</tool_calls:",)),
        Wrapper(("<tool_call:",), ("</tool_call:",)),
    ),
    "reasoning_markers": (ReasoningMarkers(("<think>", "<think:"), ("</think>", "</think:")),),
    "tokens": ("<｜hy_eos｜>", "<｜hy_eos:", "<｜hy_Assistant｜>", "<｜hy_Assistant:"),
}


_HARMONY_RECIPIENT = re.compile(r"\bto=([^\s<>{}]+)")
_HARMONY_CHANNEL = re.compile(r"\W*(analysis|commentary|final)(?![a-z])")
_HARMONY_ROLE = re.compile(r"\s*([\w.-]*)")
_HARMONY_FOREIGN = frozenset({"user", "system", "developer", "tool", "functions"})
_HARMONY_WORDS = re.compile(r"\s*(?:(?:assistant|analysis|commentary|final)\b[ \t]*|to=[\w.:-]+[ \t]*)*")
_HARMONY_IMPLIED = re.compile(r"\s*(?:(?:assistant|analysis|commentary|final|json|code|xml|to=[^\s<>{}]*)\s*)*")
_HARMONY_IMPLIED_WORDS = ("assistant", "analysis", "commentary", "final", "json", "code", "xml", "to=")


def _harmony_body(header: Header) -> Body:
    known = header.has("<|channel|>", "<|constrain|>")
    texts = [text for _, text in header.parts]
    role = _HARMONY_ROLE.match(header.text("<|start|>"))
    if role and role.group(1).partition(".")[0] in _HARMONY_FOREIGN:
        return Body(Kind.FOREIGN, doubtful=not known)
    damaged = any(_end(_HARMONY_IMPLIED, text) < len(text) for text in texts)
    recipient = next(
        (name for name in _HARMONY_RECIPIENT.findall(" ".join(texts)) if name not in ("assistant", "user", "all")), ""
    )
    if recipient:
        return Body(Kind.NAMED, recipient.removeprefix("functions."), doubtful=not known, damaged=damaged)
    channels = [found.group(1) for text in texts if (found := _HARMONY_CHANNEL.match(text))]
    kind = Kind.REASONING if channels and channels[-1] == "analysis" else Kind.CONTENT
    return Body(kind, doubtful=not known, damaged=damaged)


def _harmony_implied(text: str, _rules: ToolRules) -> bool:
    """True if a text is, or may become, words of a header whose start is in the prompt."""
    rest = text[_end(_HARMONY_IMPLIED, text) :]
    return not rest or any(word.startswith(rest) for word in _HARMONY_IMPLIED_WORDS)


def _end(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.match(text)
    return found.end() if found else 0


_HARMONY_CHANNELS = Channels(
    _harmony_body,
    starts=("<|start|>", "<|channel|>"),
    dividers=("<|channel|>", "<|constrain|>"),
    headerless_starts=("<|message|>",),
    ends=("<|end|>", "<|call|>", "<|return|>"),
    may_be_implied=_harmony_implied,
    implied_words=_HARMONY_IMPLIED_WORDS,
    header_words=lambda text: _end(_HARMONY_WORDS, text),
)
_ANALYSIS = ReasoningMarkers(("<|channel|>analysis<|message|>",), ("<|end|>",), special=True, alone=False)


_MUSE_KINDS = {"self": Kind.REASONING, "user": Kind.QUOTED, "commentary": Kind.QUOTED, "developer": Kind.DROPPED}
_MUSE_FOREIGN = ("user", "system", "developer", "tool")


def _muse_body(header: Header) -> Body | None:
    if header.has("<|channel|>", "<|constrain|>"):
        return None
    role, _, recipient = header.text("<|start|>", "").partition("to=")
    if role.strip() not in ("assistant", ""):
        return Body(Kind.FOREIGN, doubtful=True) if role.split()[0] in _MUSE_FOREIGN else None
    recipient = recipient.strip()
    if not recipient:
        return Body(Kind.REASONING, doubtful=True)
    return Body(_MUSE_KINDS.get(recipient, Kind.CALLS), recipient)


_INKLING_KINDS = {
    "<|content_text|>": Kind.CONTENT,
    "<|content_thinking|>": Kind.REASONING,
    "<|content_invoke_tool_json|>": Kind.CALLS,
    "<|content_invoke_tool_text|>": Kind.CONTENT,
    "<|content_tool_error|>": Kind.CONTENT,
}
_INKLING_MODEL = "<|message_model|>"
_INKLING_FOREIGN = ("<|message_user|>", "<|message_system|>", "<|message_tool|>")
_INKLING_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")


def _inkling_body(header: Header) -> Body:
    if header.has(*_INKLING_FOREIGN):
        return Body(Kind.FOREIGN)
    name = header.text(_INKLING_MODEL, "").strip()
    return Body(_INKLING_KINDS.get(header.body_start) or (Kind.CALLS if name else Kind.CONTENT), name)


def _inkling_implied(text: str, rules: ToolRules) -> bool:
    return rules.begins_name(text)


_GIGACHAT_ROLE = "function call<|role_sep|>"


_TO_ALL = "all"
_FUNCTIONARY_NAME = re.compile(r"[\w.-]{1,64}")


def _functionary_to(recipient: str) -> Body:
    return Body(Kind.CONTENT) if recipient == _TO_ALL else Body(Kind.NAMED, recipient)


def _functionary_names(text: str, rules: ToolRules) -> bool:
    """True if a text behind a marker is a recipient, or may become one."""
    return _functionary_opens(text, rules) or (rules.any_name and _FUNCTIONARY_NAME.fullmatch(text) is not None)


def _functionary_opens(text: str, rules: ToolRules) -> bool:
    """The same for the start of a reply, where the prompt has the marker: if no tool is known, any word could be a name."""
    return text == text.strip() and (_TO_ALL.startswith(text) or rules.begins_name(text))


def _functionary_first(text: str, rules: ToolRules) -> bool:
    return _functionary_names(text.removesuffix("\n"), rules)


def _functionary_body(header: Header) -> Body:
    return _functionary_to(header.text(">>>", ""))


def _functionary_v2_body(header: Header) -> Body:
    sender = header.text("<|from|>").strip()
    if sender not in ("assistant", ""):
        return Body(Kind.FOREIGN)
    return _functionary_to(header.text("<|recipient|>", "").strip())


_GEMMA_ENDS = ("<channel|>",)


_REACT = PromptWords(markers=("Action:",), inputs=("Action Input:",), ends=("Observation:",))
_QWEN_AGENT = PromptWords(
    markers=("✿FUNCTION✿:", "✿FUNCTION✿"), inputs=("✿ARGS✿:", "✿ARGS✿"), ends=("✿RESULT✿:", "✿RESULT✿"), special=True
)


HERMES_FAMILIES = (
    "Hermes 2 Pro, 3, 4", "Qwen2.5", "Qwen3", "QwQ", "Granite 4.0, 4.1", "EXAONE 4", "SmolLM3", "MiMo-VL", "Reka Edge", "Bielik",
    "Arch-Function", "Ling 2, Ring 2", "Trinity", "Llama-3-Groq-tool-use",
)  # fmt: skip
QWEN_CODER_FAMILIES = (
    "Qwen3-Coder, Qwen3-Next-Coder", "Qwen3.5 to 3.8", "Nemotron 3", "Step 3.5, 3.7, 5", "Granite 4.2", "MiniCPM-V", "Nanbeige 4",
    "KAT-Coder",
)  # fmt: skip


def _format(
    name: str,
    families: tuple[str, ...],
    *,
    reasoning_markers: tuple[ReasoningMarkers, ...] = (THINK,),
    tokens: tuple[str, ...] = (),
    **options: Any,
) -> Format:
    """Return a row with the control tokens of the usual chat templates and ``tokens``, and the usual reasoning tags."""
    return Format(name, families, reasoning_markers=reasoning_markers, control_tokens=(*TURNS, *tokens), **options)


_explicit = partial(_format, implicit=False)
"""A format whose calls always have their markers."""


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("fenced", ("any model that follows instructions: the contract",), implicit=False, fenced=True),
        # One JSON object in a tag: Hermes, and the many that were trained after it or with a tag of their own.
        _format("hermes", HERMES_FAMILIES, wrappers=(TOOL_CALL, TOOL_CALLS, PIPED, GLAIVE, SERVED_HISTORY)),
        _format(
            "longcat",
            ("LongCat",),
            wrappers=(Wrapper(*tags("longcat_tool_call")),),
            reasoning_markers=(ReasoningMarkers(*tags("longcat_think")),),
        ),
        _format("ernie45", ("ERNIE 4.5", "ERNIE X1"), wrappers=(TOOL_CALL,), answer_markers=(AnswerMarkers(*tags("response")),)),
        _format("dots", ("dots",), wrappers=(Wrapper(*tags("dots_function_call")),), tokens=("<|endofresponse|>",)),
        _format("xlam", ("xLAM-1, xLAM-2", "Hammer"), wrappers=(TOOL_CALL, Wrapper(("[TOOL_CALLS]",)))),
        # Granite before 4.0: a marker and a list, with no marker behind it; and reasoning between sentences.
        _format(
            "granite3",
            ("Granite 3.0 to 3.3",),
            wrappers=(PIPED, TOOL_CALL),
            reasoning_markers=(
                THINK,
                ReasoningMarkers(
                    ("Here is my thought process:", "Here's my thought process:"),
                    ("Here is my response:", "Here's my response:"),
                    alone=False,
                    needs_closer=True,
                ),
            ),
            answer_markers=(AnswerMarkers(*tags("response")),),
        ),
        _format(
            "granite_20b_fc", ("Granite 20B function calling",), wrappers=(Wrapper(*tags("function_call")),), reasoning_markers=()
        ),
        # A list of JSON objects, or one object a line, in a tag: Jamba, Hunyuan A13B, Apriel, MiniMax M1, Nemotron.
        _format("jamba", ("Jamba 1.5, 1.6",), wrappers=_LIST_WRAPPERS),
        _format("hunyuan_a13b", ("Hunyuan A13B",), wrappers=_LIST_WRAPPERS, answer_markers=(AnswerMarkers(*tags("answer")),)),
        _format(
            "apriel",
            ("Apriel 1.5, 1.6",),
            wrappers=_LIST_WRAPPERS,
            reasoning_markers=(
                # The prompt of 1.6 ends with the opening words, 1.5 writes them itself.
                ReasoningMarkers((), ("[BEGIN FINAL RESPONSE]",)),
                ReasoningMarkers(("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",), alone=False, needs_closer=True),
                THINK,
            ),
            tokens=("[END FINAL RESPONSE]", "<|begin_assistant|>"),
        ),
        _format("minimax_m1", ("MiniMax M1",), wrappers=_LIST_WRAPPERS),
        _format(
            "nemotron_v2",
            ("Nemotron Nano v2", "Llama-Nemotron"),
            wrappers=(Wrapper(*tags("TOOLCALL")),),
            tokens=("<SPECIAL_12>",),
        ),
        # InternLM: a plug-in's call between action tokens, the blank between the first two as the model likes it.
        _format(
            "internlm2",
            ("InternLM 2, 2.5, 3", "Intern-S1"),
            wrappers=(Wrapper(("<|action_start|>",), ("<|action_end|>",), noise_markers=("<|plugin|>", "<|interpreter|>")),),
            tokens=("<eoa>",),
        ),
        # ``functools[...]``: a word and a list, as Phi-4-mini and FireFunction write it.
        _format("phi4_mini", ("Phi-4-mini",), wrappers=(_FUNCTOOLS, PIPED)),
        _format("firefunction_v2", ("FireFunction v2",), wrappers=(_FUNCTOOLS,), reasoning_markers=()),
        # Cohere: a list of actions between special tokens (Command R7B and later), or after the word ``Action:`` (Command R+).
        _format(
            "cohere_command",
            ("Command R7B", "Command A", "Command A Reasoning", "Cohere2 MoE"),
            wrappers=(Wrapper(("<|START_ACTION|>",), ("<|END_ACTION|>",)),),
            reasoning_markers=(ReasoningMarkers(("<|START_THINKING|>",), (_THINKING_ENDS,), special=True),),
            channels=(
                Channels(
                    lambda header: Body(_COHERE_KINDS[header.body_start]),
                    headerless_starts=tuple(_COHERE_KINDS),
                    ends=("<|END_RESPONSE|>", "<|END_TEXT|>"),
                    reasoning_ends=(_THINKING_ENDS,),
                    stops=("<|START_ACTION|>",),
                    # citations: <co>what is said</co: 0:[1]>, the older <co: 1>what is said</co: 1>
                    noise=("<co>", "<co:", "</co>", "</co:"),
                ),
            ),
        ),
        _format(
            "command_r_plus",
            ("Command R, R+",),
            wrappers=(
                Wrapper(
                    ("Action:\n```json", "Action: ```json", "Action:```json"),
                    body_prefix_len=len("```json"),
                    noop_names=("directly-answer", "directly_answer"),
                ),
            ),
            reasoning_markers=(),
        ),
        # Apertus: a list of objects with the function's name as their only key.
        _format(
            "apertus",
            ("Apertus",),
            wrappers=(Wrapper(("<|tools_prefix|>",), ("<|tools_suffix|>",), name_is_key=True),),
            reasoning_markers=(ReasoningMarkers(("<|inner_prefix|>",), ("<|inner_suffix|>",), special=True),),
            tokens=("<|assistant_start|>", "<|assistant_end|>"),
        ),
        # Solar Open: a call's id, name and arguments, each behind a token of its own.
        _format(
            "solar_open",
            ("Solar Open",),
            wrappers=(
                Wrapper(("<|tool_calls|>",), ("<|calls|>",)),
                Wrapper(
                    ("<|tool_call:begin|>",), ("<|tool_call:end|>",), separators=("<|tool_call:name|>", "<|tool_call:args|>")
                ),
            ),
            reasoning_markers=(ReasoningMarkers(("<|think|>",), ("<|end|>",), special=True, alone=False),),
            answer_markers=(AnswerMarkers(("<|content|>",), (), special=True),),
            tokens=("<|begin|>assistant", "<|flush|>"),
        ),
        # openPangu: a list between two of the vocabulary's unused tokens.
        _format(
            "pangu",
            ("openPangu",),
            wrappers=(Wrapper(("[unused11]",), ("[unused12]",)),),
            reasoning_markers=(ReasoningMarkers(("[unused16]",), ("[unused17]",), special=True),),
            tokens=("[unused9]", "[unused10]"),
        ),
        # HyperCLOVA X SEED Think: a message to a tool, and one to itself, named in ChatML's role.
        _format(
            "hyperclova",
            ("HyperCLOVA X SEED Think",),
            wrappers=(Wrapper((f"<|im_start|>assistant {_TO_TOOL}", _TO_TOOL)),),
            reasoning_markers=(
                ReasoningMarkers(("<|im_start|>assistant/think\n",), _HYPERCLOVA_ENDS, special=True, alone=False),
                # the prompt ends with the role, the rest of the line is the model's
                ReasoningMarkers(("/think\n",), _HYPERCLOVA_ENDS, alone=False, needs_closer=True),
            ),
        ),
        # ``[TOOL_CALLS]``: a JSON array behind it (tokenizers v1 to v3), or a name and its arguments (v11 and later).
        _format("mistral_json", ("Mistral 7B v0.3", "Mixtral", "Mistral Nemo", "Ministral 8B"), **_MISTRAL),
        _format(
            "mistral_args", ("Mistral Small 3.1, 3.2", "Devstral", "Magistral", "Ministral 3", "Mistral Large 3"), **_MISTRAL
        ),
        # DeepSeek V3, R1 and V3.1: a section of calls, the name between a token and the arguments. Its tokens are written with
        # full-width pipes and a low line of their own; templates and distilled models take the nearest ASCII.
        _format(
            "deepseek_v3_json",
            ("DeepSeek V3", "DeepSeek R1 and its distillations", "Cogito"),
            wrappers=(_DEEPSEEK_SECTION, _DEEPSEEK_CALL),
            answer_markers=(_ECHOES,),
        ),
        _format("deepseek_v31", ("DeepSeek V3.1",), wrappers=(_DEEPSEEK_SECTION, _DEEPSEEK_CALL), answer_markers=(_ECHOES,)),
        # Step 3: DeepSeek's section of calls, and in it calls as tags.
        _explicit(
            "step3",
            ("Step 3",),
            wrappers=(
                _DEEPSEEK_SECTION,
                replace(_DEEPSEEK_CALL, noise_markers=tuple(f"function{separator}" for separator in _STEP_SEPARATORS)),
                opening("<steptml:invoke", closers=("</steptml:invoke>",)),
            ),
        ),
        # Kimi: a section of calls, each headed by its id (K2), or elements with attributes for all that is said (K3).
        _format(
            "kimi_k2",
            ("Kimi K2, K2-Thinking, K2.5 to K2.7", "Kimi-Linear"),
            wrappers=(
                Wrapper(
                    ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
                    ("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
                ),
                Wrapper(
                    ("<|tool_call_begin|>",),
                    ("<|tool_call_end|>",),
                    separators=("<|tool_call_argument_begin|>",),
                    name=_kimi_name,
                ),
            ),
            reasoning_markers=(THINK, ReasoningMarkers(("◁think▷",), ("◁/think▷",), special=True)),
        ),
        _explicit(
            "kimi_k3",
            ("Kimi K3",),
            reasoning_markers=(ReasoningMarkers((f"{OPEN}think{SEP}",), (_KIMI_THINK_END,), special=True),),
            channels=(Channels(_kimi_body, starts=(OPEN, CLOSE), body_starts=(SEP,), reasoning_ends=(_KIMI_THINK_END,)),),
            tokens=("<|end_of_msg|>",),
        ),
        # PLaMo 3: every part of a call between tokens of its own.
        _format(
            "plamo3",
            ("PLaMo 3",),
            wrappers=(
                Wrapper(_plamo_token("begin_tool_requests"), _plamo_token("end_tool_requests")),
                Wrapper(
                    (*_plamo_token("begin_tool_request"), *_plamo_token("begin_tool_name")),  # the first is sometimes left out
                    _plamo_token("end_tool_request"),
                    noise_markers=(*_plamo_token("begin_tool_name"), *_plamo_token("end_tool_arguments")),
                    separators=(
                        *_plamo_token("end_tool_name"),
                        *_plamo_token("begin_tool_arguments"),
                        "<|plamo:constrain|>",
                        "<|plamo:msg|>",
                    ),
                    name=first_part,
                ),
            ),
            reasoning_markers=(ReasoningMarkers(_plamo_token("begin_think"), _plamo_token("end_think"), special=True),),
            tokens=("<|plamo:tag|>",),
        ),
        # Llama 3: a call as bare JSON (``implicit``), or behind the token that its code interpreter has too.
        _format("llama3_json", ("Llama 3.1, 3.2, 3.3",), wrappers=(PYTHON_TAG,), reasoning_markers=()),
        # ``<function=f>`` and ``<parameter=k>``: Qwen3-Coder and the many after it, MiMo, Seed-OSS.
        _explicit("qwen3_coder", QWEN_CODER_FAMILIES, wrappers=(TOOL_CALL, FUNCTION)),
        _explicit("mimo", ("MiMo V2",), wrappers=(TOOL_CALL, FUNCTION)),
        _explicit(
            "seed_oss",
            ("Seed-OSS",),
            wrappers=(Wrapper(*tags("seed:tool_call")), FUNCTION),
            reasoning_markers=(ReasoningMarkers(*tags("seed:think")),),
            tokens=("<seed:bos>assistant", "<seed:bos>", "<seed:eos>"),
        ),
        _explicit("minicpm5", ("MiniCPM 5",), wrappers=(FUNCTION,)),
        # MiniMax M2: tags with named parameters; M3: a token before each tag, and elements in elements.
        _explicit(
            "minimax_m2",
            ("MiniMax M2, M2.1, M2.5",),
            wrappers=(Wrapper(*tags("minimax:tool_call")), INVOKE, BRACKETED),
            tokens=_MINIMAX_TOKENS,
        ),
        _explicit(
            "minimax_m3",
            ("MiniMax M3",),
            wrappers=(
                Wrapper((f"{TOKEN}<tool_call>",), (f"{TOKEN}</tool_call>",)),
                opening(f"{TOKEN}<invoke", closers=(f"{TOKEN}</invoke>",)),
                # where the server removed the token
                TOOL_CALL,
                INVOKE,
            ),
            reasoning_markers=(ReasoningMarkers(*tags("mm:think")), THINK),
            tokens=_MINIMAX_TOKENS,
        ),
        # DeepSeek V3.2, V4 and V4.1, and GigaChat 3.5: tags with a token in them that names the markup. Which word the wrapper
        # has, and whether a blank stands behind the token, differs between sister versions, and models take each other's.
        # Servers that remove special tokens leave tags without it.
        _explicit("deepseek_v32", ("DeepSeek V3.2",), wrappers=_DSML),
        _explicit("deepseek_v4", ("DeepSeek V4",), wrappers=_DSML),
        _explicit("deepseek_v41", ("DeepSeek V4.1",), wrappers=_DSML),
        _explicit("gigachat35", ("GigaChat 3.5",), wrappers=_dsml_wrappers("GCML")),
        # Claude's tags, from before it had native calls; many models that were trained on its answers write them now and then.
        _explicit(
            "claude_xml",
            ("Claude's legacy API", "models trained on Claude's answers"),
            wrappers=(
                Wrapper(*tags("function_calls", f"{_ANTML}function_calls")),
                INVOKE,
                opening(f"<{_ANTML}invoke", closers=(f"</{_ANTML}invoke>",)),
            ),
            reasoning_markers=(ReasoningMarkers(*tags(f"{_ANTML}thinking", "thinking")), THINK),
        ),
        # A name and pairs of ``<arg_key>`` and ``<arg_value>``: GLM, and the many after it. Some checkpoints give all their
        # tokens a suffix of their own: markers that end in a colon go on up to the next ``>``.
        _explicit("glm45", ("GLM 4.5, 4.6",), wrappers=(TOOL_CALL,), tokens=_GLM_TOKENS),
        _explicit("glm47", ("GLM 4.7", "GLM 5 and later"), wrappers=(TOOL_CALL,), tokens=_GLM_TOKENS),
        _explicit("ling3", ("Ling 3", "Ring 3"), wrappers=(TOOL_CALL,), tokens=("<role>ASSISTANT</role>", "<|role_end|>")),
        _explicit("spark25", ("Spark 2.5",), wrappers=(TOOL_CALL,), tokens=("<|Bot|>",)),
        _explicit(
            "iquest_q1",
            ("IQuest Q1",),
            wrappers=(Wrapper(*tags("iquest_tool_call")), TOOL_CALL),
            tokens=("<|iquest_assistant|>", "<|iquest_end|>"),
        ),
        _explicit("poolside_v1", ("Laguna",), wrappers=(TOOL_CALL,)),
        _explicit("hunyuan_v3", ("Hunyuan 3",), **_HUNYUAN),
        _explicit("hunyuan_v4", ("Hunyuan 4",), **_HUNYUAN),
        _explicit(
            "k2_horizon",
            ("K2 Horizon",),
            wrappers=(Wrapper(*tags("ifm|tool_calls")), Wrapper(*tags("ifm|tool_call"))),
            reasoning_markers=(ReasoningMarkers(*tags("ifm|think", "ifm|think_fast", "ifm|think_faster")),),
        ),
        # Harmony (gpt-oss): messages whose header names a channel, and a recipient where the message is a call. The prompt
        # holds ``<|start|>assistant``. Headers are often damaged: what can be understood of one counts, and a message without a
        # known channel is the answer. Beam writes the same frames, with parameters in tags as a call's body.
        _explicit(
            "harmony", ("gpt-oss",), reasoning_markers=(_ANALYSIS,), channels=(_HARMONY_CHANNELS,), opening=StrippedHarmony
        ),
        _explicit("beam", ("Beam",), reasoning_markers=(_ANALYSIS,), channels=(_HARMONY_CHANNELS,)),
        # Muse (ATEM): messages whose header names the recipient, and calls as tags in the messages to tools. The recipient
        # decides: what is said to the user is never a call, whatever stands in it.
        _explicit(
            "muse",
            ("Muse Spark", "Muse Glimmer"),
            reasoning_markers=(ReasoningMarkers((" to=self<|message|>",), ("<|eom|>",), special=True, alone=False),),
            channels=(
                Channels(
                    _muse_body,
                    starts=("<|start|>",),
                    body_starts=("<|message|>",),
                    ends=("<|eom|>", "<|eot|>"),
                    noise_markers=("<atem:function_calls>", "</atem:function_calls>"),
                    may_be_implied=_harmony_implied,
                    implied_words=_HARMONY_IMPLIED_WORDS,
                ),
            ),
        ),
        # Inkling: blocks that say themselves what they hold. The prompt holds the first ``<|message_model|>``.
        _explicit(
            "inkling",
            ("Inkling",),
            reasoning_markers=(ReasoningMarkers(("<|content_thinking|>",), _INKLING_ENDS, special=True, alone=False),),
            channels=(
                Channels(
                    _inkling_body,
                    starts=(_INKLING_MODEL, *_INKLING_FOREIGN),
                    headerless_starts=tuple(_INKLING_KINDS),
                    ends=_INKLING_ENDS,
                    may_be_implied=_inkling_implied,
                    implied_name=True,
                    header_words=lambda _text: 0,
                ),
            ),
        ),
        # GigaChat 3: one call behind a role of its own (3.0), or behind a token (3.1).
        _format(
            "gigachat3",
            ("GigaChat 3", "GigaChat 3.1"),
            wrappers=(
                Wrapper(("<|function_call|>", f"<|message_sep|>\n\n{_GIGACHAT_ROLE}", f"<|message_sep|>{_GIGACHAT_ROLE}")),
            ),
            reasoning_markers=(),
            tokens=("<|message_sep|>", "<|message_sep|>\n\nassistant<|role_sep|>"),
        ),
        _explicit(
            "functionary_v2",
            ("Functionary v2.2 to v2.5",),
            reasoning_markers=(),
            channels=(
                Channels(
                    _functionary_v2_body,
                    starts=("<|from|>",),
                    dividers=("<|recipient|>",),
                    body_starts=("<|content|>",),
                    ends=("<|stop|>",),
                    may_be_implied=_functionary_first,
                    implied_words=(_TO_ALL,),
                    implied_name=True,
                ),
            ),
        ),
        _explicit(
            "functionary_v31",
            ("Functionary v3.1", "Llama 3.1 with calls of one's own"),
            wrappers=(FUNCTION, PYTHON_TAG),
            reasoning_markers=(),
        ),
        # Functionary: each message begins with its recipient, ``all`` or a tool: ``all⏎Let me look.>>>get_weather⏎{...}``. The
        # prompt holds the first ``>>>`` (v3.0 and v3.2), or ``<|from|>assistant`` and ``<|recipient|>`` (v2). ``>>>`` is no
        # special token: it counts only with a line that is ``all`` or an offered tool's name.
        _explicit(
            "functionary_v32",
            ("Functionary v3.0, v3.2",),
            reasoning_markers=(),
            channels=(
                Channels(
                    _functionary_body,
                    starts=(">>>",),
                    body_starts=("\n",),
                    ends=("<|eot_id|>", "<|eom_id|>"),
                    may_follow_start=_functionary_names,
                    may_be_implied=_functionary_opens,
                    implied_words=(_TO_ALL,),
                    implied_name=True,
                    special=False,
                ),
            ),
        ),
        # Gemma 4 and FunctionGemma: ``call:f{city:<|"|>Rome<|"|>}``.
        _format(
            "gemma4",
            ("Gemma 4",),
            wrappers=(Wrapper(("<|tool_call>",), ("<tool_call|>",)),),
            reasoning_markers=(
                ReasoningMarkers(
                    ("<|channel><|channel>thought\n", "<|channel>thought\n", "<|channel>thought", "<|channel>"),
                    _GEMMA_ENDS,
                    special=True,
                ),
            ),
            opening=GemmaAtStart,
            tokens=("<turn|>", "<|turn>model\n", "<|turn>", "<|tool_response>", "<tool_response|>", "<tool_call|>"),
        ),
        _format(
            "functiongemma",
            ("FunctionGemma",),
            wrappers=(Wrapper(("<start_function_call>",), ("<end_function_call>",)),),
            reasoning_markers=(),
            answer_markers=(AnswerMarkers(("<start_function_response>",), ("<end_function_response>",), special=True),),
        ),
        _format("tool_code", ("Gemma 2, 3", "Gemini"), reasoning_markers=()),
        # Calls written as Python, in markers or (``implicit``) in none.
        _format(
            "pythonic",
            ("Llama 3.2", "Llama 4", "ToolACE", "watt-tool", "Gemma 3, with vLLM's template"),
            reasoning_markers=(),
            inline=True,
        ),
        _format(
            "llama4_pythonic",
            ("Llama 4",),
            wrappers=(Wrapper(("<|python_start|>",), ("<|python_end|>",)),),
            reasoning_markers=(),
            inline=True,
        ),
        _format(
            "lfm2",
            ("LFM2, 2.5",),
            wrappers=(Wrapper(("<|tool_call_start|>",), ("<|tool_call_end|>",)),),
            answer_markers=(AnswerMarkers(("<|tool_response_start|>",), ("<|tool_response_end|>",), special=True),),
        ),
        _format("olmo3", ("OLMo 3",), wrappers=(Wrapper(*tags("function_calls")),)),
        _format("gorilla", ("Gorilla OpenFunctions v2",), wrappers=(Wrapper(("<<function>>",)),), reasoning_markers=()),
        _format("nexusraven", ("NexusRaven V2",), reasoning_markers=(), opening=NexusAtStart, tokens=("<bot_end>",)),
        _format("chatglm3", ("ChatGLM 3",), reasoning_markers=(), tokens=("<|assistant|>", "<|observation|>", "<|user|>")),
        # Calls as JSON that nothing marks: only the offered tools say what is one (``implicit``). And text that never holds a
        # call.
        _format("openai_dict", ("models trained on the messages of the Chat Completions API",)),
        _format("json_array_required", ("any model whose server forces a call by a JSON schema: vLLM, SGLang",)),
        _format("bare_json", ("any model, asked for one JSON object",)),
        _format("bare_json_list", ("any model, asked for a JSON array",)),
        _explicit("plain_text", ("any model that was offered no tools",), auto=False),
        # Calls in words that a prompt asks for.
        _format(
            "react",
            ("any model that is prompted so: LangChain, LlamaIndex",),
            reasoning_markers=(),
            answer_markers=(AnswerMarkers(("Final Answer:",), ()),),
            regions=_REACT,
        ),
        _format(
            "qwen_agent",
            ("Qwen 1.5, 2 and others through Qwen-Agent",),
            answer_markers=(AnswerMarkers(("✿RETURN✿:", "✿RETURN✿"), (), special=True),),
            regions=_QWEN_AGENT,
        ),
        _format(
            "glm4_9b",
            ("GLM-4-9B",),
            auto=False,
            reasoning_markers=(),
            opening=NameOnLine,
            tokens=("<|assistant|>", "<|observation|>", "<|user|>"),
        ),
    )
}


def choose(format: str | Format) -> tuple[Format, ...]:  # noqa: A002 - the name the API fixes
    """Return the formats to look for: one by name, the caller's own Format, or for "auto" all that can be detected.

    Raises ConfigurationError.
    """
    if isinstance(format, Format):
        return (format,)
    return _by_name(format) if isinstance(format, str) else unknown_format(format)


@lru_cache(maxsize=64)
def _by_name(name: str) -> tuple[Format, ...]:
    if name == "auto":
        return tuple(row for row in FORMATS.values() if row.auto)
    if name not in FORMATS:
        unknown_format(name)
    return (FORMATS[name],)


def is_path(name: str) -> bool:
    """True if the name given for a format is a file's; no format is named like that."""
    return name.startswith((".", "/", "~")) or name.endswith((".toml", ".json", ".jinja"))


def unknown_format(name: object) -> NoReturn:
    """Raise ConfigurationError for an unknown format, with a suggestion."""
    if isinstance(name, os.PathLike):
        name = os.fspath(name)
    known = {_letters(each): each for each in ("auto", *FORMATS)}
    if not isinstance(name, str):
        hint = "Give a format's name, or a Format."
    elif is_path(name):
        hint = f"A file's format is read by patchbay.load_format({name!r})."
    elif near := get_close_matches(_letters(name), known, n=1, cutoff=0.75):
        hint = f"Did you mean {known[near[0]]!r}? 'patchbay formats' lists them all."
    else:
        hint = f"Known formats: {', '.join(known.values())}."
    raise ConfigurationError(f"Unknown format {name!r}. {hint}")


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


@lru_cache(maxsize=64)
def markers(
    formats: tuple[Format, ...],
) -> tuple[tuple[Wrapper, ...], tuple[ReasoningMarkers, ...], tuple[AnswerMarkers, ...], tuple[str, ...]]:
    """Return the wrappers, reasoning markers, answer markers and control tokens of some formats, without duplicates, in order."""
    return (
        tuple(dict.fromkeys(wrapper for row in formats for wrapper in row.wrappers)),
        tuple(dict.fromkeys(reasoning for row in formats for reasoning in _reasoning_markers(row))),
        tuple(dict.fromkeys(answer for row in formats for answer in row.answer_markers)),
        tuple(dict.fromkeys(token for row in formats for token in row.control_tokens)),
    )


def _reasoning_markers(row: Format) -> Iterator[ReasoningMarkers]:
    """Yield a format's reasoning markers, without openers if its messages have headers: these open reasoning then."""
    for reasoning in row.reasoning_markers:
        yield replace(reasoning, openers=()) if row.channels else reasoning
