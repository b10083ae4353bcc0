"""Who is measured. A further peer is one module with a ``Row``, one file of pins in ``bench/peers``, and one row here."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import install

FLOOR = "a loop by hand"
RUNNER = "patchbay ToolRunner"
AGENT = "patchbay LlmAgent"
PYDANTIC_AI = "pydantic-ai-slim"
OPENAI_AGENTS = "openai-agents"
GOOGLE_ADK = "google-adk"

PEERS = (PYDANTIC_AI, OPENAI_AGENTS, GOOGLE_ADK)
"""Named as on PyPI, in ``bench/peers`` and in the table."""


@dataclass(frozen=True)
class Row:
    """One framework: the module of its turns. ``python`` returns the interpreter; it raises UnavailableError with the reason."""

    name: str
    module: str
    version: str
    python: Callable[[bool], Path]


def _here(_: bool) -> Path:  # noqa: FBT001
    return Path(sys.executable)


def _peer(name: str) -> Row:
    def python(allowed: bool) -> Path:  # noqa: FBT001
        return install.environment(name, allowed=allowed) / "python"

    module = f"bench.turns.peer_{name.removesuffix('-slim').replace('-', '_')}"
    return Row(name, module, install.pinned(name), python)


def rows() -> tuple[Row, ...]:
    """All of them, in the order of the table."""
    ours = importlib.metadata.version("patchbay")
    return (
        Row(FLOOR, "bench.turns.floor", "", _here),
        Row(RUNNER, "bench.turns.patchbay_runner", ours, _here),
        Row(AGENT, "bench.turns.patchbay_agent", ours, _here),
        *(_peer(name) for name in PEERS),
    )
