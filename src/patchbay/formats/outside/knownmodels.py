"""A model's name as its user has it, to the format that the model was trained on. A hint: for prompts, and for showing.

Reading does not need it (``auto`` finds out from the text), and a name may lie: a fine-tune is called after its base, a served
name after nothing at all. So only words that are known count, and where they speak for two families there is no hint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from patchbay.formats.outside.modeltable import KNOWN, Known
from patchbay.formats.table import FORMATS


@dataclass(frozen=True)
class Hint:
    """What a name tells. ``families``: who else writes this format. ``why``: the words that told it.

    ``reasons``: whether the model reasons before it answers; ``reasoning_prefilled``: whether its prompt opens the reasoning.
    None: that depends on the request, or is not known.
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
"""What a file may be called that says nothing of the model in it."""
_GAP = "..."


def format_of(model: str) -> Hint | None:
    """The hint that a model's name gives, None where it gives none.

    Any spelling that is in use: an Ollama tag (``qwen3-coder:30b``), a Hugging Face id, a GGUF file's name or path, a served
    name.
    """
    for part in _parts(model):
        words = _words(part)
        found = _best(words)
        if found is not None:
            known, name = found
            return _hint(known, name, part) if known.format and not _NOT_CHAT.intersection(words) else None
    return None


def _parts(model: str) -> Iterator[str]:
    """The parts of a name that can be a model's: the last one, and of a path the folder where the file's name says nothing."""
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


def _best(words: tuple[str, ...]) -> tuple[Known, str] | None:
    """The row that fits best, and its name; None where none fits, or where two that differ fit equally well."""
    fits = [(name, span, known) for name, known in _names() if (span := name.within(words))]
    # A longer name takes its words from a shorter one: "qwen 3 coder" is not "qwen 3".
    fits = [one for one in fits if not any(other[0].weight > one[0].weight and _covers(other[1], one[1]) for other in fits)]
    own = [one for one in fits if not one[2].base] or fits
    if not own or len({known.format for _, _, known in own}) > 1:
        return None
    name, _, known = max(own, key=lambda one: one[0].weight)
    return known, name.text


def _covers(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _hint(known: Known, name: str, part: str) -> Hint:
    assert known.format is not None
    row = FORMATS.get(known.format)
    return Hint(
        format=known.format,
        families=row.families if row else (),
        reasons=None if known.reasoning == "asked" else known.reasoning != "",
        reasoning_prefilled=None if known.reasoning == "asked" else known.reasoning == "prefilled",
        why=f"{part!r} has the words of {name!r}",
    )


@dataclass(frozen=True)
class _Name:
    """A row's name, as runs of words to look for. ``weight``: how much it says."""

    text: str
    runs: tuple[tuple[str, ...], ...]
    weight: int

    def within(self, words: tuple[str, ...]) -> tuple[int, int] | None:
        """Where in ``words`` the name stands, as the first and behind the last of its words."""
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
def _names() -> tuple[tuple[_Name, Known], ...]:
    found = []
    for known in KNOWN:
        for text in known.names:
            runs = tuple(tuple(run.split()) for run in text.split(_GAP))
            weight = sum(1 if word.endswith(".x") else 2 for run in runs for word in run)
            found.append((_Name(text, runs, weight), known))
    return tuple(found)
