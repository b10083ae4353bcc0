"""The flags of ``patchbay serve`` that say which realtime model its sessions have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.realtime.config import RealtimeSettings

SESSIONS = "Live sessions"

Model = Annotated[
    str | None,
    typer.Option(
        "--realtime",
        metavar="MODEL",
        envvar="PATCHBAY_REALTIME",
        rich_help_panel=SESSIONS,
        help="Realtime model of the sessions at /api/sessions/ROLE: openai/gpt-realtime, gemini/NAME, glm/NAME, qwen/NAME, "
        "stepfun/NAME.",
    ),
]

Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="PATCHBAY_REALTIME_URL",
        rich_help_panel=SESSIONS,
        help="Its server, where that is not the provider's own: ws://127.0.0.1:9000/v1/realtime.",
    ),
]

Key = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        envvar="PATCHBAY_REALTIME_KEY",
        rich_help_panel=SESSIONS,
        help="API key for it. Without one the provider's own variable (OPENAI_API_KEY, ...) is used, but at the provider's own "
        "servers alone: never with another --realtime-url. Better given by the environment: a flag can be read in the list of "
        "processes.",
    ),
]

Voice = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", envvar="PATCHBAY_REALTIME_VOICE", rich_help_panel=SESSIONS, help="The voice that it speaks with."
    ),
]

Calls = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        envvar="PATCHBAY_REALTIME_CALLS",
        rich_help_panel=SESSIONS,
        show_default="4",
        help="How many calls a session may begin in any 15 seconds; more are answered with an error.",
    ),
]


def realtime_settings(
    model: str | None, url: str | None, key: str | None, voice: str | None, calls: int | None
) -> RealtimeSettings | None:
    """Return what the flags say, None where there is no realtime model. Raises ConfigurationError."""
    if not model:
        for name, value in (("url", url), ("key", key), ("voice", voice), ("calls", calls)):
            if value:
                raise ConfigurationError(f"--realtime-{name} says more of a realtime model: name it by --realtime.")
        return None
    from patchbay.realtime.config import RealtimeLimits, RealtimeSettings

    limits = RealtimeLimits() if calls is None else RealtimeLimits(flood_calls=calls)
    return RealtimeSettings(model=model, url=url or None, api_key=key or None, voice=voice or None, limits=limits)
