"""``patchbay doctor``: examine a model server and the local configuration. The checks are ``patchbay.doctor``."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import textwrap
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchbay._flags import build
from patchbay._redaction import protect
from patchbay._text import plural
from patchbay.cli.options import (
    Json,
    mcp_config_option,
    reject_flags_as_keys,
    store_option,
    upstream_option,
    with_flags,
)
from patchbay.cli.terminal import escape_unencodable, print_json, supports_colour
from patchbay.server.settings import ProxySettings

if TYPE_CHECKING:
    from patchbay.doctor.findings import Finding
    from patchbay.doctor.local import LocalSettings

_SERVER, _LOCAL = "Model server", "Local configuration"
_COLOURS = {"ok": "\x1b[32m", "note": "\x1b[33m", "problem": "\x1b[1;31m", "skipped": "\x1b[2m"}
_INTERRUPTED = 130
_INDENT = 30

Upstream = Annotated[
    str,
    upstream_option(
        "Base URL of the OpenAI-compatible server to examine, such as http://127.0.0.1:11434/v1.",
        show_default=False,
        rich_help_panel=_SERVER,
    ),
]
Model = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        show_default=False,
        rich_help_panel=_SERVER,
        help="Model to examine; default: the first of the server's list.",
    ),
]
Timeout = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", rich_help_panel=_SERVER, help="Maximum time of each request to the server.")
]
Limit = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", rich_help_panel=_SERVER, help="Maximum time of the whole examination.")
]
Deep = Annotated[bool, typer.Option("--deep", rich_help_panel=_SERVER, help="Try a prompt of up to 128,000 tokens, not 8,000.")]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", envvar="PATCHBAY_CONFIG", rich_help_panel=_LOCAL, help="File with hooks, approvals and mcpServers."
    ),
]
McpConfig = Annotated[
    Path | None,
    mcp_config_option(
        "File with mcpServers to connect; none: no file. Default: ~/.config/patchbay/mcp.json, but not with --upstream.",
        rich_help_panel=_LOCAL,
    ),
]
Plugins = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|MODULE:CLASS", envvar="PATCHBAY_PLUGINS", rich_help_panel=_LOCAL, help="Plugins to start, and to end again."
    ),
]
Store = Annotated[str | None, store_option("Database of patchbay serve to open.", rich_help_panel=_LOCAL)]


@with_flags((_SERVER, ProxySettings, "upstream_key"))
def doctor(
    upstream: Upstream = "",
    model: Model = "",
    timeout: Timeout = 60.0,
    limit: Limit = 600.0,
    deep: Deep = False,
    config: Config = None,
    mcp_config: McpConfig = None,
    plugins: Plugins = None,
    store: Store = None,
    as_json: Json = False,
    **values: Any,
) -> None:
    """Examine a model server and the local configuration, and say what to do.

    With --upstream about 20 requests show how the model takes tools, formats, roles and constraints, how long its context is,
    and which flags of patchbay proxy are right for it. Hooks, MCP servers and plugins that flags name are started, and ended.

    Exit status: 0 no problem, 1 a problem, 2 usage error, 130 Ctrl-C, after what is known is printed.

    [bold]Examples[/bold]

      patchbay doctor --upstream http://127.0.0.1:11434/v1 --model qwen3

      UPSTREAM_API_KEY=… patchbay doctor --upstream https://llm.example.com/v1 --deep

      patchbay doctor --config patchbay.toml --plugins ./plugins --store sqlite:///tools.db

      patchbay doctor --upstream http://gpu:8000/v1 --json
    """  # fmt: skip
    from patchbay.cli.serving import NONE, mcp_servers
    from patchbay.doctor.local import LocalSettings

    escape_unencodable()
    reject_flags_as_keys(upstream_key=values["upstream_key"])
    settings = build(ProxySettings, values, upstream=upstream) if upstream else None
    if settings is not None:
        protect(settings.upstream_key)
        mcp_config = mcp_config or Path(NONE)
    logging.getLogger("patchbay").setLevel(logging.CRITICAL)  # the findings say it
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    local = LocalSettings(
        config=None if config is None else config.expanduser(),
        servers=partial(mcp_servers, mcp_config, config),
        plugins=plugins,
        store=None if store == "memory" else store,
    )
    report = _Report(as_json=as_json)
    interrupted = False
    try:
        asyncio.run(_run(report, local, settings, model, timeout=timeout, limit=limit, deep=deep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        interrupted = True
    report.end(interrupted=interrupted)
    sys.exit(_INTERRUPTED if interrupted else 1 if report.problems else 0)


async def _run(report: _Report, local: LocalSettings, settings: ProxySettings | None, model: str, **bounds: Any) -> None:
    from patchbay.doctor.examination import examine
    from patchbay.doctor.local import check_local

    await report.follow(partial(check_local, local))
    if settings is None:
        await report.follow(_name_servers)
    else:
        await report.follow(partial(examine, settings, model, **bounds))


async def _name_servers(begins: Callable[[str], object]) -> AsyncGenerator[Finding, None]:
    """Yield the model servers that run on this machine: none was named."""
    from patchbay.doctor.findings import Finding
    from patchbay.doctor.model_servers import find_servers

    begins("upstream")
    found = await find_servers()
    names = ", ".join(f"{each} at {each.url}" for each in found) or "none"
    url = found[0].url if found else "URL"
    seen = f"No model server is examined; on this machine there is: {names}."
    yield Finding("upstream", "skipped", seen, f"Examine one: patchbay doctor --upstream {url}.")


class _Report:
    """Prints findings as they come, or all as JSON at the end; what runs now is on the last line of a terminal's stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._shows_progress = sys.stderr.isatty()
        self._findings: list[Finding] = []

    @property
    def problems(self) -> int:
        """The number of problems."""
        return sum(each.status == "problem" for each in self._findings)

    async def follow(self, check: Callable[..., AsyncGenerator[Finding, None]]) -> None:
        """Print the findings of a check as they come."""
        async for finding in check(begins=self._begin):
            self._clear()
            self._findings.append(finding)
            if not self._as_json:
                self._print(finding)

    def end(self, *, interrupted: bool) -> None:
        """Print the summary."""
        self._clear()
        findings = self._findings
        if self._as_json:
            command = next((each.seen for each in findings if each.name == "recommended" and each.status != "skipped"), None)
            found = [asdict(each) for each in findings]
            result = {"findings": found, "problems": self.problems, "recommended": command, "interrupted": interrupted}
            print_json(result, ensure_ascii=False)
            return
        counts = ", ".join(f"{sum(each.status == status for each in findings)} {status}" for status in _COLOURS)
        print(f"{plural(len(findings), 'finding')}: {counts}{'; interrupted' if interrupted else ''}")

    def _print(self, finding: Finding) -> None:
        colour, plain = (_COLOURS[finding.status], "\x1b[0m") if supports_colour(sys.stdout) else ("", "")
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize  # elsewhere one line is one sentence
        is_command = finding.name == "recommended"  # which is to be copied
        lines = [finding.seen] if is_command else textwrap.wrap(finding.seen, max(width - _INDENT, 40), break_on_hyphens=False)
        lines += [f"-> {finding.advice}"] if finding.advice else []
        print(f"{colour}{finding.status:<8}{plain} {finding.name:<20} {lines[0]}")
        for line in lines[1:]:
            print(textwrap.fill(line, width, initial_indent=" " * _INDENT, subsequent_indent=" " * (_INDENT + 3)))
        sys.stdout.flush()

    def _begin(self, name: str, _model: str = "") -> None:
        if self._shows_progress:
            print(f"\r\x1b[Kchecking {name} …", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._shows_progress:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
