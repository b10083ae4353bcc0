"""Map a model's name to the format that the model was trained on: a hint, for prompts and for display.

Reading does not need it (``auto`` decides by the text), and names mislead: a fine-tune is named after its base, a served model
after nothing at all. So only known words count, and if they point to two families there is no hint.

In a row a name is written as words: a number is a word of its own (``qwen 2.5``), ``2.x`` is 2 and every 2.something, ``...``
stands for any words between. A row applies to all names that have these words in this order; of several rows the most specific
one wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from patchbay.formats.catalog import FORMATS

Reasoning = Literal["", "yes", "prefilled", "requested"]
"""Reasoning: none; opened by the model; opened by the prompt; depends on the request, or unknown."""


@dataclass(frozen=True)
class KnownModel:
    """Some model names and their format; None: no known format, or one that the name does not tell.

    ``base``: a family that others train further: a name with another family's words too belongs to the other.
    """

    names: tuple[str, ...]
    format: str | None
    reasoning: Reasoning = ""
    base: bool = False


KNOWN: tuple[KnownModel, ...] = (
    KnownModel(("hermes 2 pro", "hermes 3"), "hermes"),
    KnownModel(("hermes 4.x",), "hermes", "requested"),
    KnownModel(("qwen 2.5",), "hermes", base=True),
    KnownModel(("qwen 3", "qwen 3 vl", "qwen 3 next"), "hermes", "yes", base=True),
    KnownModel(("qwen 3 ... instruct", "qwen 3 next ... instruct", "qwen 3 vl ... instruct"), "hermes", base=True),
    KnownModel(("qwen 3 ... thinking", "qwen 3 next ... thinking", "qwen 3 vl ... thinking"), "hermes", "prefilled", base=True),
    KnownModel(("qwq",), "hermes", "prefilled", base=True),
    KnownModel(("qwen 3 coder", "qwen 3 coder next", "qwen 3 coder ... instruct", "qwen 3 next coder"), "qwen3_coder", base=True),
    KnownModel(("qwen 3.5", "qwen 3.6", "qwen 3.8"), "qwen3_coder", "prefilled", base=True),
    KnownModel(("granite 3.x",), "granite3", base=True),
    KnownModel(("granite 3.2", "granite 3.3"), "granite3", "requested", base=True),
    KnownModel(("granite 4", "granite 4.0", "granite 4.1"), "hermes", base=True),
    KnownModel(("granite 4.2",), "qwen3_coder", "requested", base=True),
    KnownModel(("granite 20 b functioncalling", "granite 20 b function calling"), "granite_20b_fc"),
    KnownModel(("mimo vl", "exaone 4.x", "smollm 3"), "hermes", "requested"),
    KnownModel(("mimo v 2.x",), "mimo", "requested"),
    KnownModel(("reka edge",), "hermes", "prefilled"),
    KnownModel(("bielik",), "hermes", "requested"),
    KnownModel(("arch function", "arch agent", "llama 3 groq ... tool use"), "hermes"),
    KnownModel(("ling 2", "ling 2.0"), "hermes"),
    KnownModel(("ring 2", "ring 2.0"), "hermes", "requested"),
    KnownModel(("ling 2.6",), "glm45"),
    KnownModel(("ring 2.6",), "glm45", "requested"),
    KnownModel(("ling 3.x", "ring 3.x"), "ling3", "prefilled"),
    KnownModel(("trinity mini", "trinity nano", "trinity large"), "hermes", "yes"),
    KnownModel(("nemotron 3 nano", "nemotron 3 super", "nemotron 3 ultra"), "qwen3_coder", "prefilled"),
    KnownModel(("nemotron nano ... v 2",), "nemotron_v2", "prefilled"),
    KnownModel(("llama 3.1 nemotron nano", "llama 3.1 nemotron ultra", "llama 3.3 nemotron super"), "nemotron_v2", "requested"),
    KnownModel(("step 3.5", "step 3.7", "step 5"), "qwen3_coder", "prefilled"),
    KnownModel(("step 3",), "step3", "requested"),
    KnownModel(("minicpm v", "nanbeige 4.x"), "qwen3_coder", "requested"),
    KnownModel(("kat coder",), "qwen3_coder"),
    KnownModel(("minicpm 5.x",), "minicpm5", "requested"),
    KnownModel(("seed oss",), "seed_oss", "yes"),
    KnownModel(("minimax m 1",), "minimax_m1", "yes"),
    KnownModel(("minimax m 2.x",), "minimax_m2", "prefilled"),
    KnownModel(("minimax m 3.x",), "minimax_m3", "requested"),
    KnownModel(("deepseek v 3", "deepseek chat v 3"), "deepseek_v3_json"),
    KnownModel(("deepseek r 1", "deepseek r 1 distill"), "deepseek_v3_json", "prefilled"),
    KnownModel(("deepseek v 3.1", "deepseek chat v 3.1"), "deepseek_v31", "requested"),
    KnownModel(("deepseek v 3.2",), "deepseek_v32", "requested"),
    KnownModel(("deepseek v 4",), "deepseek_v4", "requested"),
    KnownModel(("deepseek v 4.1",), "deepseek_v41", "requested"),
    KnownModel(("cogito 2.x", "cogito v 2.x"), "deepseek_v3_json", "requested"),
    KnownModel(("gigachat 3", "gigachat 3.1"), "gigachat3"),
    KnownModel(("gigachat 3.5",), "gigachat35"),
    KnownModel(("muse spark", "muse glimmer"), "muse", "yes"),
    KnownModel(("kimi k 2.x",), "kimi_k2", "requested"),
    KnownModel(("kimi k 2 instruct", "kimi linear"), "kimi_k2"),
    KnownModel(("kimi k 2 thinking",), "kimi_k2", "yes"),
    KnownModel(("kimi k 3.x",), "kimi_k3", "prefilled"),
    KnownModel(("glm 4.5", "glm 4.6"), "glm45", "yes"),
    KnownModel(("glm 4.7", "glm 5.x"), "glm47", "prefilled"),
    KnownModel(("spark 2.5",), "spark25", "prefilled"),
    KnownModel(("iquest q 1",), "iquest_q1"),
    KnownModel(("laguna",), "poolside_v1", "requested"),
    KnownModel(("hunyuan a 13 b",), "hunyuan_a13b", "requested"),
    KnownModel(("hy 3", "hunyuan 3", "hy 4", "hunyuan 4"), "hunyuan_v3", "requested"),
    KnownModel(("k 2 horizon",), "k2_horizon", "requested"),
    KnownModel(("plamo 3.x",), "plamo3"),
    KnownModel(("gemma 2", "gemma 3", "gemma 3 n"), "tool_code", base=True),
    KnownModel(("gemma 4.x",), "gemma4", "requested", base=True),
    KnownModel(("functiongemma",), "functiongemma"),
    KnownModel(("toolace", "watt tool"), "pythonic"),
    KnownModel(("llama 4", "llama 4.x"), "llama4_pythonic", base=True),
    KnownModel(("lfm 2.x",), "lfm2"),
    KnownModel(("lfm 2.x ... thinking",), "lfm2", "yes"),
    KnownModel(("olmo 3.x",), "olmo3"),
    KnownModel(("olmo 3.x ... think",), "olmo3", "prefilled"),
    KnownModel(("llama 3.1", "llama v 3.1", "llama 3.2", "llama v 3.2", "llama 3.3", "llama v 3.3"), "llama3_json", base=True),
    KnownModel(("mistral 7 b instruct v 0.3", "mistral 7 b v 0.3", "mixtral", "mistral nemo"), "mistral_json", base=True),
    KnownModel(("ministral 8 b",), "mistral_json", base=True),
    KnownModel(("mistral small 3.1", "mistral small 3.2", "mistral large 3"), "mistral_args", base=True),
    KnownModel(("ministral 3",), "mistral_args", base=True),
    KnownModel(("ministral 3 ... reasoning",), "mistral_args", "yes", base=True),
    KnownModel(("devstral",), "mistral_args"),
    KnownModel(("magistral",), "mistral_args", "yes"),
    KnownModel(("functionary ... v 3.1",), "functionary_v31"),
    KnownModel(("functionary ... v 3.2",), "functionary_v32"),
    KnownModel(("gpt oss",), "harmony", "yes"),
    KnownModel(("jamba ... 1.5", "jamba ... 1.6"), "jamba"),
    KnownModel(("apriel ... 1.5", "apriel ... 1.6"), "apriel", "requested"),
    KnownModel(("longcat",), "longcat", "requested"),
    KnownModel(("ernie 4.5 ... thinking",), "ernie45", "prefilled"),
    KnownModel(("internlm 2", "internlm 2.5"), "internlm2"),
    KnownModel(("intern s 1",), "internlm2", "requested"),
    KnownModel(("phi 4 mini",), "phi4_mini", base=True),
    KnownModel(("xlam", "hammer 2.x"), "xlam"),
    KnownModel(("command r", "command r plus"), "command_r_plus"),
    KnownModel(("command r 7 b", "command a"), "cohere_command"),
    KnownModel(("command a reasoning",), "cohere_command", "requested"),
    KnownModel(("apertus",), "apertus"),
    KnownModel(("firefunction v 2",), "firefunction_v2"),
    KnownModel(("solar open",), "solar_open", "yes"),
    KnownModel(("pangu", "openpangu"), "pangu"),
    KnownModel(("hyperclovax seed think", "hyperclova x seed think"), "hyperclova"),
    KnownModel(("inkling",), "inkling", "requested"),
    # Known by name, and retrained without tools or in a way that their name does not say.
    KnownModel(("dolphin", "openhermes", "nous hermes 2", "cogito", "phi 4 mini reasoning", "qwen 2.5 omni"), None),
)
"""All rows, grouped by family."""


@dataclass(frozen=True)
class ModelHint:
    """Hint from a name. ``families``: others that write this format. ``why``: the words that matched.

    ``reasons``: whether the model reasons before it answers. ``reasoning_prefilled``: whether its prompt opens the reasoning.
    None:
    depends on the request, or unknown.
    """

    format: str
    families: tuple[str, ...]
    reasons: bool | None
    reasoning_prefilled: bool | None
    why: str


_WORD = re.compile(r"\d+(?:\.\d+)*|[a-z]+")
_FILE = re.compile(r"(?:-\d{5}-of-\d{5})?\.(?:gguf|safetensors|bin)$")
_DECIMAL = re.compile(r"(?<=\d)[p_](?=\d)")
_SNAPSHOT = re.compile(r"models--(?P<org>[^/]+?)--(?P<name>[^/]+)")
_NOT_CHAT = frozenset({"base", "embed", "embedding", "rerank", "reranker", "guard", "reward", "whisper", "tts", "asr"})
_FILE_WORDS = frozenset(
    {"model", "ggml", "gguf", "pytorch", "consolidated", "of"}
    | {"q", "iq", "k", "m", "s", "l", "xs", "xxs", "nl", "f", "bf", "fp", "int", "bit"}
)
"""Words in file names that say nothing about the model."""
_GAP = "..."


def format_of(model: str) -> ModelHint | None:
    """Return the hint that a model's name gives, None if it gives none.

    Any common spelling works: an Ollama tag (``qwen3-coder:30b``), a Hugging Face id, a GGUF file's name or path, a served name.
    """
    for part in _parts(model):
        words = _words(part)
        found = _best(words)
        if found is not None:
            known, name = found
            return _hint(known, name, part) if known.format and not _NOT_CHAT.intersection(words) else None
    return None


def _parts(model: str) -> Iterator[str]:
    """Yield the parts of a name that may name a model: the last one, and the folder of a file whose name says nothing."""
    name = model.strip().replace("\\", "/").rstrip("/")
    cached = _SNAPSHOT.search(name)
    parts = [cached["name"]] if cached else [part for part in name.split("/") if part]
    while parts:
        part = parts.pop()
        yield part
        if not _FILE.search(part.lower()) or any(word.isalpha() and word not in _FILE_WORDS for word in _words(part)):
            return


def _words(part: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(_DECIMAL.sub(".", _FILE.sub("", part.lower()))))


def _best(words: tuple[str, ...]) -> tuple[KnownModel, str] | None:
    """Return the row that fits best, and its name; None if none fits, or if two that differ fit equally well."""
    fits = [(name, span, known) for name, known in _names() if (span := name.within(words))]
    # A longer name beats a shorter one inside it: "qwen 3 coder" is not "qwen 3".
    fits = [one for one in fits if not any(other[0].weight > one[0].weight and _covers(other[1], one[1]) for other in fits)]
    own = [one for one in fits if not one[2].base] or fits
    if not own or len({known.format for _, _, known in own}) > 1:
        return None
    name, _, known = max(own, key=lambda one: one[0].weight)
    return known, name.text


def _covers(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _hint(known: KnownModel, name: str, part: str) -> ModelHint:
    assert known.format is not None
    row = FORMATS.get(known.format)
    return ModelHint(
        format=known.format,
        families=row.families if row else (),
        reasons=None if known.reasoning == "requested" else known.reasoning != "",
        reasoning_prefilled=None if known.reasoning == "requested" else known.reasoning == "prefilled",
        why=f"{part!r} has the words of {name!r}",
    )


@dataclass(frozen=True)
class _Name:
    """A row's name, as runs of words to search for. ``weight``: how specific it is."""

    text: str
    runs: tuple[tuple[str, ...], ...]
    weight: int

    def within(self, words: tuple[str, ...]) -> tuple[int, int] | None:
        """Return the span of the name in ``words``, None if it is not in there."""
        begin, at = -1, 0
        for run in self.runs:
            at = next((i for i in range(at, len(words) - len(run) + 1) if all(map(_same, run, words[i:]))), -1)
            if at < 0:
                return None
            begin = at if begin < 0 else begin
            at += len(run)
        return begin, at


def _same(wanted: str, word: str) -> bool:
    return word == wanted or (wanted.endswith(".x") and word.partition(".")[0] == wanted[:-2])


@lru_cache(maxsize=1)
def _names() -> tuple[tuple[_Name, KnownModel], ...]:
    found = []
    for known in KNOWN:
        for text in known.names:
            runs = tuple(tuple(run.split()) for run in text.split(_GAP))
            weight = sum(1 if word.endswith(".x") else 2 for run in runs for word in run)
            found.append((_Name(text, runs, weight), known))
    return tuple(found)
