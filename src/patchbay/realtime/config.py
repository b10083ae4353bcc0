"""Settings of realtime sessions: model, voice and all limits, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import float_info
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from patchbay._flags import flag
from patchbay.errors import ConfigurationError

RESULT_CHARS: Final = 2_000_000
"""Characters of long tool results that a session keeps for the model to page through."""

_COUNTS: Final = frozenset(
    ("flood_calls", "max_rounds", "max_calls", "reconnects", "kept_items", "kept_chars", "waiting", "max_frame")
)
_MAY_BE_ZERO: Final = frozenset(("reconnects", "grace", "kept_items"))

_TEXTS: Final = ("model", "provider", "url", "api_key", "instructions", "voice")
_OPTIONAL: Final = ("url", "api_key", "voice")


@dataclass(frozen=True, kw_only=True)
class RealtimeLimits:
    """Timeouts (seconds) and bounds of a session. Raises ConfigurationError for invalid values.

    A requested response must start within ``created``, and produce something every ``done``; a cancelled one must end within
    ``cancel``. A change of tools must be confirmed within ``update``. After the end of a response, late calls are collected for
    ``grace``.

    At most ``flood_calls`` calls start in any ``flood_seconds``, counted per connection; a user's turn has at most
    ``max_rounds`` responses with calls, and ``max_calls`` calls. A tool that runs longer than ``slow_after`` is reported to the
    model as still running (None: never).

    A lost connection is reopened up to ``reconnects`` times in a row, with pauses from ``first_pause`` to ``longest_pause``. A
    new connection receives the last ``kept_items`` lines of history, of together ``kept_chars`` characters. At most ``waiting``
    events are queued for the reader, and frames may have ``max_frame`` bytes.
    """

    connect: float = 10.0
    update: float = 5.0
    created: float = 5.0
    done: float = 60.0
    cancel: float = 3.0
    grace: float = 0.5
    flood_calls: int = field(
        default=4, metadata=flag("Maximum calls of a session in any 15 seconds.", name="realtime-calls", metavar="N", min=1)
    )
    flood_seconds: float = 15.0
    max_rounds: int = 10
    max_calls: int = 32
    slow_after: float | None = 10.0
    reconnects: int = 8
    first_pause: float = 0.25
    longest_pause: float = 15.0
    kept_items: int = 64
    kept_chars: int = 65_536
    waiting: int = 2_000
    max_frame: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (name == "slow_after" if value is None else _is_valid_limit(name, value)):
                kind = "a whole number" if name in _COUNTS else "a number of seconds"
                least = "0 or more" if name in _MAY_BE_ZERO else "more than 0"
                raise ConfigurationError(f"{name} of a realtime session must be {kind}, {least}; not {value!r}.")


def _is_valid_limit(name: str, value: object) -> bool:
    """True for a valid limit: counts are integers, seconds are finite."""
    if isinstance(value, bool) or not isinstance(value, int if name in _COUNTS else int | float):
        return False
    return 0 < value <= float_info.max or (value == 0 and name in _MAY_BE_ZERO)


@dataclass(frozen=True, kw_only=True)
class RealtimeSettings:
    """Model, provider and behaviour of a session.

    The provider is named by ``model`` (``openai/gpt-realtime``), else by ``provider``, else by the host of ``url``. ``url`` is
    the WebSocket endpoint (None: the provider's default), ``api_key`` the key (None: from the provider's usual environment
    variable). ``output`` is "audio" (with transcript) or "text". ``transcribe``: also return the user's speech as text.
    ``detect_turns``: the server detects the end of the user's speech; without it, call ``respond``. ``extra`` is merged into
    the provider's session object (Gemini: ``setup``).

    Raises ConfigurationError that names the invalid setting.
    """

    model: str = field(
        metadata=flag(
            "Realtime model of the sessions at /api/sessions/ROLE: openai/gpt-realtime, gemini/NAME, glm/NAME, qwen/NAME, "
            "stepfun/NAME.",
            name="realtime",
            metavar="MODEL",
            type=str,
            default=None,
        )
    )
    provider: str = ""
    url: str | None = field(
        default=None,
        metadata=flag(
            "Its server instead of the provider's: ws://127.0.0.1:9000/v1/realtime.", name="realtime-url", metavar="URL", type=str
        ),
    )
    api_key: str | None = field(
        default=None,
        repr=False,
        metadata=flag(
            "Its API key. Default: the provider's own variable (OPENAI_API_KEY, ...), which is never sent to another "
            "--realtime-url. Prefer the environment variable: flags are visible in the process list.",
            name="realtime-key",
            metavar="KEY",
            type=str,
        ),
    )
    instructions: str = ""
    voice: str | None = field(default=None, metadata=flag("Its voice.", name="realtime-voice", metavar="NAME", type=str))
    output: Literal["audio", "text"] = "audio"
    transcribe: bool = True
    detect_turns: bool = True
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    limits: RealtimeLimits = field(default_factory=RealtimeLimits)

    def __post_init__(self) -> None:
        self._check_types()
        if not self.model.strip():
            raise ConfigurationError("A realtime session needs the name of a model.")
        if self.output not in ("audio", "text"):
            raise ConfigurationError(f'output of a realtime session is "audio" or "text", not {self.output!r}.')
        if self.url is not None and not self.url.startswith(("ws://", "wss://")):
            raise ConfigurationError(f"The URL of a realtime session begins with ws:// or wss://, not {self.url!r}.")

    def _check_types(self) -> None:
        """Check types here rather than in the middle of a session. Values are not repeated: one may be the key."""
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and name in _OPTIONAL):
                raise ConfigurationError(f"{name} of a realtime session must be a text, not {type(value).__name__}.")
        for name in ("transcribe", "detect_turns"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigurationError(f"{name} of a realtime session must be True or False, not {value!r}.")
        if not isinstance(self.extra, Mapping) or not _is_json(dict(self.extra)):
            raise ConfigurationError("extra of a realtime session must be a mapping that can be written as JSON.")
        check_limits(self.limits)


def check_limits(limits: object) -> None:
    """Raise ConfigurationError unless ``limits`` are RealtimeLimits."""
    if not isinstance(limits, RealtimeLimits):
        raise ConfigurationError(f"limits of a realtime session must be RealtimeLimits, not {type(limits).__name__}.")


def _is_json(value: object) -> bool:
    """True if a value can be encoded as JSON."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return True  # half of a character is replaced when it is sent
    except (TypeError, ValueError, RecursionError):
        return False
    return True
