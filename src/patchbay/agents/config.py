"""What a run may use up and how it goes, and what a model is asked to write like: plain settings, checked when they are set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.executor import Budget
from patchbay.executor.budget import checked_count
from patchbay.tools.base import checked_timeout


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Limits and manners of one run; times are in seconds, None is no limit.

    ``max_llm_calls`` and ``max_tool_calls`` count over all agents of the run, those of parallel branches included.
    ``run_timeout`` is for the whole run, callbacks and agents of one's own included, from the moment on when it has its session;
    ``llm_timeout`` for each answer of a model, ``tool_timeout`` for tools without a limit of their own. With ``streaming`` the
    run's events include partial ones, as a model writes.

    A model is shown what was said in the last ``max_history_events`` events of a session; of a longer one down to three quarters
    of that, since what it is shown begins at the same event for as long as it can, so that its server's prompt cache holds. A
    message of more than ``max_message_length`` characters is refused. ``context`` is the caller's own, for callbacks and tools.
    Raises ConfigurationError for a limit that cannot be kept.
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
            checked_count(getattr(self, name), name)
        for name in ("run_timeout", "llm_timeout", "tool_timeout"):
            checked_timeout(getattr(self, name), name)

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
        checked_count(self.max_output_tokens, "max_output_tokens")
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
