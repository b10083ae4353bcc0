"""The flags that say by what a server's turns are governed: the same for every server that runs some.

What lives here: their types for the commands' signatures, and what they mean together. What does not: their defaults, which stand
with each command.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.server.oversight import Oversight

_PANEL = "Hooks, approvals, audit"
_NO_AUDIT = "none"
_MEMORY = "memory"
_IN_MEMORY = "sqlite://"
_DAY = 24 * 3600.0

Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="PATCHBAY_CONFIG",
        rich_help_panel=_PANEL,
        help="JSON, YAML or TOML file with hooks and approvals. Read again at SIGHUP.",
    ),
]

Audit = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="PATCHBAY_AUDIT",
        rich_help_panel=_PANEL,
        help="Where each call is written down; without it in the --store. memory keeps a day of it until the server ends, "
        "none writes nothing.",
    ),
]

AuditDays = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="DAYS",
        envvar="PATCHBAY_AUDIT_DAYS",
        rich_help_panel=_PANEL,
        help="How long an entry of the audit is kept; 0 is for ever.",
    ),
]


def make_oversight(config: Path | None, audit: str | None, days: float, *, store: str | None) -> Oversight:
    """Return what the flags say. ``store`` is where all is kept that nothing else is said of, None for memory.

    In memory the audit is that of a day at most: it must not grow for as long as the server runs.
    """
    from patchbay.server.oversight import Oversight, OversightSettings

    if config is not None and not config.expanduser().is_file():
        raise ConfigurationError(f"--config: there is no file {config}.")
    written = store if audit is None else audit
    if written is None or written == _MEMORY:
        written = _IN_MEMORY
    if written == _IN_MEMORY:
        days = min(days, 1.0) or 1.0
    return Oversight(
        OversightSettings(
            config=config.expanduser() if config is not None else None,
            approvals=store,
            audit=None if written == _NO_AUDIT else written,
            audit_kept=days * _DAY if days else None,
        )
    )
