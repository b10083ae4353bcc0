"""What a realtime session is told: whose model, how it speaks, and all limits. Plain data, checked when it is set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import float_info
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from patchbay.errors import ConfigurationError

RESULT_CHARS: Final = 2_000_000
"""How many characters of long results a session keeps for the model to read on."""

_COUNTS: Final = frozenset(
    ("flood_calls", "max_rounds", "max_calls", "reconnects", "kept_items", "kept_chars", "waiting", "max_frame")
)
_MAY_BE_NOTHING: Final = frozenset(("reconnects", "grace", "kept_items"))

_TEXTS: Final = ("model", "provider", "url", "api_key", "instructions", "voice")
_MAY_BE_LEFT_OUT: Final = ("url", "api_key", "voice")


@dataclass(frozen=True, kw_only=True)
class RealtimeLimits:
    """How long is waited for what (seconds), and how much there may be. Raises ConfigurationError for what cannot work.

    A response that was asked for begins within ``created`` and is over within ``done`` (silence counts, not its length); one that
    was cancelled within ``cancel``. A change of the tools is confirmed within ``update``. After the end of a response its calls
    are collected for ``grace`` more.

    At most ``flood_calls`` calls begin in any ``flood_seconds``, counted anew with each connection; a user's turn has at most
    ``max_rounds`` responses with calls, and ``max_calls`` calls. A tool that is not done after ``slow_after`` is told to the
    model as still running (None: never).

    A lost connection is opened again up to ``reconnects`` times in a row, with pauses from ``first_pause`` to ``longest_pause``.
    Of the conversation ``kept_items`` items of together ``kept_chars`` characters are told to a new connection. ``waiting``
    events wait to be read, and frames of ``max_frame`` bytes are taken.
    """

    connect: float = 10.0
    update: float = 5.0
    created: float = 5.0
    done: float = 60.0
    cancel: float = 3.0
    grace: float = 0.5
    flood_calls: int = 4
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
            if not (name == "slow_after" if value is None else _can_be_kept(name, value)):
                kind = "a whole number" if name in _COUNTS else "a number of seconds"
                least = "0 or more" if name in _MAY_BE_NOTHING else "more than 0"
                raise ConfigurationError(f"{name} of a realtime session must be {kind}, {least}; not {value!r}.")


def _can_be_kept(name: str, value: object) -> bool:
    """Whether a limit is one that means something: a count is whole, seconds come to an end."""
    if isinstance(value, bool) or not isinstance(value, int if name in _COUNTS else int | float):
        return False
    return 0 < value <= float_info.max or (value == 0 and name in _MAY_BE_NOTHING)


@dataclass(frozen=True, kw_only=True)
class RealtimeSettings:
    """What a session is asked to be.

    ``model`` may name its provider, ``openai/gpt-realtime``; else ``provider`` does, or the host of ``url``. ``url`` is the
    WebSocket's (None: the provider's own), ``api_key`` what it is opened with (None: the environment's, as the provider's
    documentation names it). ``output`` is whether the model answers with "audio" (and its transcript) or with "text" alone.
    ``transcribe``: the user's speech is told as text too. ``detect_turns``: the server hears when the user has ended; without it
    ``respond`` says so. ``extra`` are members of the provider's session object (of ``setup`` with Gemini) as they are: JSON.

    Raises ConfigurationError, which names the setting, for one that is not of its type or cannot work.
    """

    model: str
    provider: str = ""
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    instructions: str = ""
    voice: str | None = None
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
        """Find out here what would else be found out in the midst of a talk. No value is repeated: it may be the key."""
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and name in _MAY_BE_LEFT_OUT):
                raise ConfigurationError(f"{name} of a realtime session must be a text, not {type(value).__name__}.")
        for name in ("transcribe", "detect_turns"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigurationError(f"{name} of a realtime session must be True or False, not {value!r}.")
        if not isinstance(self.extra, Mapping) or not _is_json(dict(self.extra)):
            raise ConfigurationError("extra of a realtime session must be a mapping that can be written as JSON.")
        check_limits(self.limits)


def check_limits(limits: object) -> None:
    """Raise ConfigurationError for limits that are none."""
    if not isinstance(limits, RealtimeLimits):
        raise ConfigurationError(f"limits of a realtime session must be RealtimeLimits, not {type(limits).__name__}.")


def _is_json(value: object) -> bool:
    """Whether a frame can have this in it."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return True  # half of a character is replaced when it is sent
    except (TypeError, ValueError, RecursionError):
        return False
    return True
