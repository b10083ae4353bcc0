"""The model registry's rows: model names and what their makers trained them to write. How names are matched: ``knownmodels``.

A name is written as words; a number is a word of its own (``qwen 2.5``), ``2.x`` is 2 and every 2.something, ``...`` stands for
words between. A row holds for all names that have these words in this order; of several rows the most specific one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Reasoning = Literal["", "yes", "prefilled", "asked"]
"""Whether the models reason: no; yes, and open it themselves; yes, and the prompt opens it; as the request asks, or not known."""


@dataclass(frozen=True)
class Known:
    """Some model names and their format; None: known to have none, or one that its name does not tell.

    ``base``: a family that others train further: a name that has another family's words as well is that other's.
    """

    names: tuple[str, ...]
    format: str | None
    reasoning: Reasoning = ""
    base: bool = False


def _rows() -> Iterator[Known]:
    yield Known(("hermes 2 pro", "hermes 3"), "hermes")
    yield Known(("hermes 4.x",), "hermes", "asked")
    yield Known(("qwen 2.5",), "hermes", base=True)
    yield Known(("qwen 3", "qwen 3 vl", "qwen 3 next"), "hermes", "yes", base=True)
    yield Known(("qwen 3 ... instruct", "qwen 3 next ... instruct", "qwen 3 vl ... instruct"), "hermes", base=True)
    yield Known(("qwen 3 ... thinking", "qwen 3 next ... thinking", "qwen 3 vl ... thinking"), "hermes", "prefilled", base=True)
    yield Known(("qwq",), "hermes", "prefilled", base=True)
    yield Known(("qwen 3 coder", "qwen 3 coder next", "qwen 3 coder ... instruct", "qwen 3 next coder"), "qwen3_coder", base=True)
    yield Known(("qwen 3.5", "qwen 3.6", "qwen 3.8"), "qwen3_coder", "prefilled", base=True)
    yield Known(("granite 3.x",), "granite3", base=True)
    yield Known(("granite 3.2", "granite 3.3"), "granite3", "asked", base=True)
    yield Known(("granite 4", "granite 4.0", "granite 4.1"), "hermes", base=True)
    yield Known(("granite 4.2",), "qwen3_coder", "asked", base=True)
    yield Known(("granite 20 b functioncalling", "granite 20 b function calling"), "granite_20b_fc")
    yield Known(("mimo vl", "exaone 4.x", "smollm 3"), "hermes", "asked")
    yield Known(("mimo v 2.x",), "mimo", "asked")
    yield Known(("reka edge",), "hermes", "prefilled")
    yield Known(("bielik",), "hermes", "asked")
    yield Known(("arch function", "arch agent", "llama 3 groq ... tool use"), "hermes")
    yield Known(("ling 2", "ling 2.0"), "hermes")
    yield Known(("ring 2", "ring 2.0"), "hermes", "asked")
    yield Known(("ling 2.6",), "glm45")
    yield Known(("ring 2.6",), "glm45", "asked")
    yield Known(("ling 3.x", "ring 3.x"), "ling3", "prefilled")
    yield Known(("trinity mini", "trinity nano", "trinity large"), "hermes", "yes")
    yield Known(("nemotron 3 nano", "nemotron 3 super", "nemotron 3 ultra"), "qwen3_coder", "prefilled")
    yield Known(("nemotron nano ... v 2",), "nemotron_v2", "prefilled")
    yield Known(("llama 3.1 nemotron nano", "llama 3.1 nemotron ultra", "llama 3.3 nemotron super"), "nemotron_v2", "asked")
    yield Known(("step 3.5", "step 3.7", "step 5"), "qwen3_coder", "prefilled")
    yield Known(("step 3",), "step3", "asked")
    yield Known(("minicpm v", "nanbeige 4.x"), "qwen3_coder", "asked")
    yield Known(("kat coder",), "qwen3_coder")
    yield Known(("minicpm 5.x",), "minicpm5", "asked")
    yield Known(("seed oss",), "seed_oss", "yes")
    yield Known(("minimax m 1",), "minimax_m1", "yes")
    yield Known(("minimax m 2.x",), "minimax_m2", "prefilled")
    yield Known(("minimax m 3.x",), "minimax_m3", "asked")
    yield Known(("deepseek v 3", "deepseek chat v 3"), "deepseek_v3_json")
    yield Known(("deepseek r 1", "deepseek r 1 distill"), "deepseek_v3_json", "prefilled")
    yield Known(("deepseek v 3.1", "deepseek chat v 3.1"), "deepseek_v31", "asked")
    yield Known(("deepseek v 3.2",), "deepseek_v32", "asked")
    yield Known(("deepseek v 4",), "deepseek_v4", "asked")
    yield Known(("deepseek v 4.1",), "deepseek_v41", "asked")
    yield Known(("cogito 2.x", "cogito v 2.x"), "deepseek_v3_json", "asked")
    yield Known(("gigachat 3", "gigachat 3.1"), "gigachat3")
    yield Known(("gigachat 3.5",), "gigachat35")
    yield Known(("muse spark", "muse glimmer"), "muse", "yes")
    yield Known(("kimi k 2.x",), "kimi_k2", "asked")
    yield Known(("kimi k 2 instruct", "kimi linear"), "kimi_k2")
    yield Known(("kimi k 2 thinking",), "kimi_k2", "yes")
    yield Known(("kimi k 3.x",), "kimi_k3", "prefilled")
    yield Known(("glm 4.5", "glm 4.6"), "glm45", "yes")
    yield Known(("glm 4.7", "glm 5.x"), "glm47", "prefilled")
    yield Known(("spark 2.5",), "spark25", "prefilled")
    yield Known(("iquest q 1",), "iquest_q1")
    yield Known(("laguna",), "poolside_v1", "asked")
    yield Known(("hunyuan a 13 b",), "hunyuan_a13b", "asked")
    yield Known(("hy 3", "hunyuan 3", "hy 4", "hunyuan 4"), "hunyuan_v3", "asked")
    yield Known(("k 2 horizon",), "k2_horizon", "asked")
    yield Known(("plamo 3.x",), "plamo3")
    yield Known(("gemma 2", "gemma 3", "gemma 3 n"), "tool_code", base=True)
    yield Known(("gemma 4.x",), "gemma4", "asked", base=True)
    yield Known(("functiongemma",), "functiongemma")
    yield Known(("toolace", "watt tool"), "pythonic")
    yield Known(("llama 4", "llama 4.x"), "llama4_pythonic", base=True)
    yield Known(("lfm 2.x",), "lfm2")
    yield Known(("lfm 2.x ... thinking",), "lfm2", "yes")
    yield Known(("olmo 3.x",), "olmo3")
    yield Known(("olmo 3.x ... think",), "olmo3", "prefilled")
    yield Known(("llama 3.1", "llama v 3.1", "llama 3.2", "llama v 3.2", "llama 3.3", "llama v 3.3"), "llama3_json", base=True)
    yield Known(("mistral 7 b instruct v 0.3", "mistral 7 b v 0.3", "mixtral", "mistral nemo"), "mistral_json", base=True)
    yield Known(("ministral 8 b",), "mistral_json", base=True)
    yield Known(("mistral small 3.1", "mistral small 3.2", "mistral large 3"), "mistral_args", base=True)
    yield Known(("ministral 3",), "mistral_args", base=True)
    yield Known(("ministral 3 ... reasoning",), "mistral_args", "yes", base=True)
    yield Known(("devstral",), "mistral_args")
    yield Known(("magistral",), "mistral_args", "yes")
    yield Known(("functionary ... v 3.1",), "functionary_v31")
    yield Known(("functionary ... v 3.2",), "functionary_v32")
    yield Known(("gpt oss",), "harmony", "yes")
    yield Known(("jamba ... 1.5", "jamba ... 1.6"), "jamba")
    yield Known(("apriel ... 1.5", "apriel ... 1.6"), "apriel", "asked")
    yield Known(("longcat",), "longcat", "asked")
    yield Known(("ernie 4.5 ... thinking",), "ernie45", "prefilled")
    yield Known(("internlm 2", "internlm 2.5"), "internlm2")
    yield Known(("intern s 1",), "internlm2", "asked")
    yield Known(("phi 4 mini",), "phi4_mini", base=True)
    yield Known(("xlam", "hammer 2.x"), "xlam")
    yield Known(("command r", "command r plus"), "command_r_plus")
    yield Known(("command r 7 b", "command a"), "cohere_command")
    yield Known(("command a reasoning",), "cohere_command", "asked")
    yield Known(("apertus",), "apertus")
    yield Known(("firefunction v 2",), "firefunction_v2")
    yield Known(("solar open",), "solar_open", "yes")
    yield Known(("pangu", "openpangu"), "pangu")
    yield Known(("hyperclovax seed think", "hyperclova x seed think"), "hyperclova")
    yield Known(("inkling",), "inkling", "asked")
    # Known by name, and trained anew without tools or in a way that their name does not tell.
    yield Known(("dolphin", "openhermes", "nous hermes 2", "cogito", "phi 4 mini reasoning", "qwen 2.5 omni"), None)


KNOWN: tuple[Known, ...] = tuple(_rows())
"""All rows, each family's together."""
