"""The one table of formats: a row for each way of writing calls. A further format is one file in ``families`` and one row here.

Prose and fences that are code are no format: they are there whatever the model writes its calls in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from typing import NoReturn

from patchbay.errors import ConfigurationError
from patchbay.formats.families import (
    apertus,
    bare,
    claude,
    cohere,
    deepseek,
    dsml,
    functionary,
    gemma,
    gigachat,
    glm,
    granite,
    harmony,
    hermes,
    hyperclova,
    inkling,
    internlm,
    jsonlists,
    kimi,
    llama,
    minimax,
    mistral,
    muse,
    pangu,
    phi,
    plamo,
    prompted,
    python,
    qwen,
    solar,
    step,
)
from patchbay.formats.fences.fenced import BlockReader
from patchbay.formats.rows import Format, Frame, Thought, Wrapper

FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("fenced", families=("any model that follows instructions: the contract",), loose=False, blocks=BlockReader),
        hermes.HERMES,
        hermes.LONGCAT,
        hermes.ERNIE45,
        hermes.DOTS,
        hermes.XLAM,
        granite.GRANITE3,
        granite.GRANITE_20B_FC,
        jsonlists.JAMBA,
        jsonlists.HUNYUAN_A13B,
        jsonlists.APRIEL,
        jsonlists.MINIMAX_M1,
        jsonlists.NEMOTRON_V2,
        internlm.INTERNLM2,
        phi.PHI4_MINI,
        phi.FIREFUNCTION_V2,
        cohere.COMMAND,
        cohere.COMMAND_R_PLUS,
        apertus.APERTUS,
        solar.SOLAR_OPEN,
        pangu.PANGU,
        hyperclova.HYPERCLOVA,
        mistral.JSON,
        mistral.ARGS,
        deepseek.V3,
        deepseek.V31,
        step.STEP3,
        kimi.K2,
        kimi.K3,
        plamo.PLAMO3,
        llama.LLAMA3_JSON,
        qwen.QWEN3_CODER,
        qwen.MIMO,
        qwen.SEED_OSS,
        qwen.MINICPM5,
        minimax.M2,
        minimax.M3,
        dsml.DEEPSEEK_V32,
        dsml.DEEPSEEK_V4,
        dsml.DEEPSEEK_V41,
        dsml.GIGACHAT35,
        claude.CLAUDE_XML,
        glm.GLM45,
        glm.GLM47,
        glm.LING3,
        glm.SPARK25,
        glm.IQUEST_Q1,
        glm.POOLSIDE_V1,
        glm.HUNYUAN_V3,
        glm.HUNYUAN_V4,
        glm.K2_HORIZON,
        harmony.HARMONY,
        harmony.BEAM,
        muse.MUSE,
        inkling.INKLING,
        gigachat.GIGACHAT3,
        functionary.V2,
        functionary.V31,
        functionary.V32,
        gemma.GEMMA4,
        gemma.FUNCTIONGEMMA,
        python.TOOL_CODE,
        python.PYTHONIC,
        python.LLAMA4_PYTHONIC,
        python.LFM2,
        python.OLMO3,
        python.GORILLA,
        python.NEXUSRAVEN,
        python.CHATGLM3,
        bare.OPENAI_DICT,
        bare.JSON_ARRAY_REQUIRED,
        bare.BARE_JSON,
        bare.BARE_JSON_LIST,
        bare.PLAIN_TEXT,
        prompted.REACT,
        prompted.QWEN_AGENT,
        prompted.GLM4,
    )
}


def choose(format: str | Format) -> tuple[Format, ...]:  # noqa: A002 - the name the API fixes
    """The formats to look for: one by its name or as a row of the caller's own, or for "auto" all that can be found in a text.

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
    """Whether what was given as a format's name is a file's: no format is called so."""
    return name.startswith((".", "/", "~")) or name.endswith((".toml", ".json", ".jinja"))


def unknown_format(name: object) -> NoReturn:
    """Refuse what names no format: say what may have been meant. Raises ConfigurationError."""
    if isinstance(name, os.PathLike):
        name = os.fspath(name)
    known = {_letters(each): each for each in ("auto", *FORMATS)}
    if not isinstance(name, str):
        said = "Give a format's name, or a Format."
    elif is_path(name):
        said = f"A file's format is read by patchbay.load_format({name!r})."
    elif near := get_close_matches(_letters(name), known, n=1, cutoff=0.75):
        said = f"Did you mean {known[near[0]]!r}? 'patchbay formats' lists them all."
    else:
        said = f"Known formats: {', '.join(known.values())}."
    raise ConfigurationError(f"Unknown format {name!r}. {said}")


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


@lru_cache(maxsize=64)
def markers(
    formats: tuple[Format, ...],
) -> tuple[tuple[Wrapper, ...], tuple[Thought, ...], tuple[Frame, ...], tuple[str, ...]]:
    """The wrappers, reasoning markers, frames and special tokens of some formats, each once; the first format's come first."""
    return (
        tuple(dict.fromkeys(wrapper for row in formats for wrapper in row.wrappers)),
        tuple(dict.fromkeys(thought for row in formats for thought in _thoughts(row))),
        tuple(dict.fromkeys(frame for row in formats for frame in row.frames)),
        tuple(dict.fromkeys(token for row in formats for token in row.leaks)),
    )


def _thoughts(row: Format) -> Iterator[Thought]:
    """A format's reasoning markers. Where messages have headers, these open reasoning, and the closers are for the prompt's."""
    for thought in row.thoughts:
        yield replace(thought, openers=()) if row.channels else thought
