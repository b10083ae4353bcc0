"""What the chat door is told, checked when it is set. Plain data; where the upstream is stands in ``ProxySettings``."""

from __future__ import annotations

from dataclasses import dataclass, field

from patchbay.errors import ConfigurationError
from patchbay.executor import Budget
from patchbay.executor.budget import checked_count
from patchbay.models.options import TextOptions
from patchbay.server.settings import MIB
from patchbay.tools.attachments import checked_kinds


@dataclass(frozen=True)
class ChatSettings:
    """How turns are run. Raises ConfigurationError for what cannot work.

    ``options`` is how tools reach the model, as in the proxy. A turn ends after ``max_iterations`` rounds, ``max_calls`` calls of
    the registry's tools or ``max_seconds`` (None: no limit). Sessions have the first two as well, and of calls their own limit
    where there is none here; nobody but their client waits for a turn, who may end it.

    ``attachments`` are the kinds ("image", "audio", "file") that the upstream's models take of what tools return.

    Between two requests of a conversation the server keeps what its client does not see: of at most ``max_kept`` answers,
    ``max_kept_size`` bytes, and for ``kept_for`` seconds since they were last asked about.
    """

    options: TextOptions = field(default_factory=TextOptions)
    max_iterations: int = 10
    max_calls: int | None = None
    max_seconds: float | None = None
    attachments: tuple[str, ...] = ()
    max_kept: int = 1000
    max_kept_size: int = 64 * MIB
    kept_for: float = 3600.0

    def __post_init__(self) -> None:
        if checked_count(self.max_iterations, "max_iterations") is None:
            raise ConfigurationError("max_iterations must be a number: a turn that nobody watches needs an end.")
        self.budget()
        checked_kinds(self.attachments)
        for name in ("max_kept", "max_kept_size", "kept_for"):
            if not getattr(self, name) >= 0:
                raise ConfigurationError(f"{name} must be 0 (keep nothing) or more.")

    def budget(self) -> Budget:
        """Return the budget of one turn."""
        return Budget(max_calls=self.max_calls, max_seconds=self.max_seconds)
