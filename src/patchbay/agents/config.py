"""What a run may use up and how it goes, and what a model is asked to write like: plain settings, checked when they are set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.executor import Budget


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Limits and manners of one run; times are in seconds, None is no limit.

    ``max_llm_calls`` and ``max_tool_calls`` count over all agents of the run, those of parallel branches included.
    ``run_timeout`` is for the whole run, ``llm_timeout`` for each answer of a model, ``tool_timeout`` for tools without a limit
    of their own. With ``streaming`` the run's events include partial ones, as a model writes. A model is shown what was said in
    the last ``max_history_events`` events. A message of more than ``max_message_length`` characters is refused. ``context`` is
    the caller's own, for callbacks and tools. Raises ConfigurationError for a limit that cannot be kept.
    """

    max_llm_calls: int | None = 50
    max_tool_calls: int | None = None
    run_timeout: float | None = None
    llm_timeout: float | None = None
    tool_timeout: float | None = None
    streaming: bool = False
    max_history_events: int | None = 100
    max_message_length: int | None = None
    context: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_llm_calls", "max_tool_calls", "max_history_events", "max_message_length"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise ConfigurationError(f"{name} must be a whole number of at least 1, or None for no limit; not {count!r}.")
        for name in ("run_timeout", "llm_timeout", "tool_timeout"):
            seconds = getattr(self, name)
            number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if seconds is not None and (not number or not math.isfinite(seconds) or seconds <= 0):
                raise ConfigurationError(f"{name} must be a positive number of seconds, or None for no limit; not {seconds!r}.")

    def budget(self) -> Budget:
        """Return a Budget of these limits, unused."""
        return Budget(max_iterations=self.max_llm_calls, max_calls=self.max_tool_calls, max_seconds=self.run_timeout)


@dataclass(kw_only=True)
class GenerateContentConfig:
    """How a model is asked to write. What is None is left to the model's server; ``extra`` is passed on in OpenAI's words.

    Raises ConfigurationError for what no server takes.
    """

    temperature: float | None = None
    max_output_tokens: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
                raise ConfigurationError(f"{name} must be a number, or None; not {number!r}.")
        most = self.max_output_tokens
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ConfigurationError(f"max_output_tokens must be a whole number of at least 1, or None; not {most!r}.")
        stops = self.stop_sequences
        if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
            raise ConfigurationError(f"stop_sequences must be a list of texts, not {stops!r}.")

    def parameters(self) -> dict[str, Any]:
        """Return these in OpenAI's words."""
        said = {
            "temperature": self.temperature,
            "max_tokens": self.max_output_tokens,
            "top_p": self.top_p,
            "stop": list(self.stop_sequences) or None,
        }
        return {**{name: value for name, value in said.items() if value is not None}, **self.extra}
