"""Who is measured. A further peer is one module with a ``Row``, one file of pins in ``bench/peers``, and one row here."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import patchbay
from bench import install

FLOOR = "a loop by hand"
CLIENT_FLOOR = "openai, extra_body"
RUNNER = "patchbay ToolRunner"
AGENT = "patchbay LlmAgent"
PYDANTIC_AI = "pydantic-ai-slim"
OPENAI_AGENTS = "openai-agents"
GOOGLE_ADK = "google-adk"

CLIENT_OURS = {
    "patchbay.wrap": "Wrapped",
    "patchbay.wrap, text": "WrappedText",
    RUNNER: "Run",
    f"{RUNNER}, text": "RunText",
    AGENT: "Agent",
    f"{AGENT}, text": "AgentText",
}
"""Ours over the real ``openai`` client, and their classes."""

PEERS = (PYDANTIC_AI, OPENAI_AGENTS, GOOGLE_ADK)
"""Named as on PyPI, in ``bench/peers`` and in the table."""


@dataclass(frozen=True)
class Row:
    """One framework: the module of its turns. ``python`` returns the interpreter; it raises UnavailableError with the reason."""

    name: str
    module: str
    version: str
    python: Callable[[bool], Path]


def this_python(_: bool) -> Path:  # noqa: FBT001
    return Path(sys.executable)


def _peer(name: str, kind: str = "peer") -> Row:
    def python(allowed: bool) -> Path:  # noqa: FBT001
        return install.environment(name, allowed=allowed) / "python"

    module = f"bench.turns.{kind}_{name.removesuffix('-slim').replace('-', '_')}"
    return Row(name, module, install.pinned(name), python)


def client_rows() -> tuple[Row, ...]:
    """Those over the real ``openai`` client."""
    ours = patchbay.__version__
    return (
        Row(CLIENT_FLOOR, "bench.turns.client_floor", importlib.metadata.version("openai"), this_python),
        *(Row(name, f"bench.turns.client_patchbay:{kind}", ours, this_python) for name, kind in CLIENT_OURS.items()),
        *(_peer(name, "client") for name in (PYDANTIC_AI, OPENAI_AGENTS)),
    )


def rows() -> tuple[Row, ...]:
    """All of them, in the order of the table."""
    ours = patchbay.__version__
    return (
        Row(FLOOR, "bench.turns.floor", "", this_python),
        Row(RUNNER, "bench.turns.patchbay_runner", ours, this_python),
        Row(AGENT, "bench.turns.patchbay_agent", ours, this_python),
        *(_peer(name) for name in PEERS),
    )
