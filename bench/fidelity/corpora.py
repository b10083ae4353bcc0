"""Where the recorded texts are, and their own scorers. They are no part of this repository: what is absent raises UnavailableError.

A corpus is a gzipped file of JSON lines beside a ``score.py``. The scorers are imported by their path, so that the figures here are
the figures that anybody else gets; nothing of them is copied.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.places import ROOT, UnavailableError

DATA = ROOT.parent / "shared" / "data"
BFCL = DATA / "bfcl" / "dev.jsonl.gz"
BFCL_TEXT = DATA / "bfcl" / "dev_fc_text.jsonl.gz"
FORMATS = DATA / "formats" / "dev.jsonl.gz"

Row = dict[str, Any]


def lines(file: Path, *, sample: int = 0) -> list[str]:
    """The rows of a corpus, unread; with ``sample`` so many of them, always the same. Raises UnavailableError where it is absent."""
    if not file.is_file():
        raise UnavailableError(f"{_shown(file)} is not here")
    with gzip.open(file, "rt", encoding="utf-8") as text:
        found = [line for line in text if line.strip()]
    if not 0 < sample < len(found):
        return found
    # Every n-th row would follow the order of the corpus, and see only some of its models.
    return [found[at] for at in sorted(random.Random(0).sample(range(len(found)), sample))]


def rows(file: Path, *, sample: int = 0) -> Iterator[Row]:
    """The rows of a corpus. Raises UnavailableError."""
    return map(json.loads, lines(file, sample=sample))


@lru_cache(maxsize=4)
def scorer(folder: Path) -> ModuleType:
    """The ``score.py`` of a corpus's folder. Raises UnavailableError where it is absent."""
    file = folder / "score.py"
    spec = importlib.util.spec_from_file_location(f"patchbay_score_{folder.name}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise UnavailableError(f"{_shown(file)} is not here")
    module = importlib.util.module_from_spec(spec)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder is not ours to write to
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    return module


def _shown(file: Path) -> str:
    return "../" + file.relative_to(ROOT.parent).as_posix()
