"""Options that several commands share, and flags from settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from patchbay._flags import Flag, flag_of
from patchbay.errors import ConfigurationError

C = TypeVar("C", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
SERVER = "http://127.0.0.1:48911"
"""The default address of ``patchbay serve``."""

SERVING = "Server"
GOVERNANCE = "Hooks, approvals, audit"


def server_option(help: str) -> Any:
    """Return the option for the server that a command connects to."""
    return typer.Option("--server", metavar="URL", envvar="PATCHBAY_SERVER", help=help)


def upstream_option(help: str, **options: Any) -> Any:
    """Return the option for the model server behind the proxy or the tool server."""
    return typer.Option("--upstream", metavar="URL", envvar=["UPSTREAM_BASE_URL", "PATCHBAY_UPSTREAM"], help=help, **options)


def store_option(help: str, **options: Any) -> Any:
    """Return the option for the database of a server."""
    return typer.Option("--store", metavar="URL", envvar="PATCHBAY_STORE", help=help, **options)


def mcp_config_option(help: str, **options: Any) -> Any:
    """Return the option for the file of MCP servers."""
    return typer.Option("--mcp-config", metavar="FILE", envvar="PATCHBAY_MCP_CONFIG", help=help, show_default=False, **options)


Server = Annotated[str, server_option("Base URL of the server.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", envvar="PATCHBAY_TOKEN_FILE", help="File (mode 0600) with the bearer token."),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        rich_help_panel=SERVING,
        help="Print a line for each request, with tool names and reasons; on a terminal the default is a shorter one.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=SERVING, help="Log only errors of the server itself.")]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="PATCHBAY_CONFIG",
        rich_help_panel=GOVERNANCE,
        help="JSON, YAML or TOML file with hooks and approvals; reloaded on SIGHUP.",
    ),
]
McpConfig = Annotated[Path | None, mcp_config_option("File with mcpServers; default: ~/.config/patchbay/mcp.json.")]
Audit = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="PATCHBAY_AUDIT",
        rich_help_panel=GOVERNANCE,
        help="Database of the audit log; default: the --store. memory: one day, in memory; none: no audit log.",
    ),
]
AuditDays = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="DAYS",
        envvar="PATCHBAY_AUDIT_DAYS",
        rich_help_panel=GOVERNANCE,
        help="Retention of the audit log; 0: forever.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command_group(name: str, help: str, **options: object) -> typer.Typer:
    """Create a group of commands; without a command it prints its help."""
    settings = {"no_args_is_help": True, "help": help, **options}
    return typer.Typer(
        name=name,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings=CONTEXT,
        **settings,  # type: ignore[arg-type]
    )


def is_explicit(context: typer.Context, name: str) -> bool:
    """Whether a parameter's value was given on the command line, and not by the environment."""
    found = context.get_parameter_source(name)
    return found is not None and found.name == "COMMANDLINE"


def with_flags(*groups: tuple[Any, ...]) -> Callable[[C], C]:
    """Add the flags of settings to a command, which receives their values as keyword arguments, by field name.

    Each group is a panel of the help, a settings class, and the names of its fields (default: all with a flag). Parameters of the
    command itself take precedence.
    """

    def decorate(command: C) -> C:
        signature = inspect.signature(command, eval_str=True)
        parameters = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
        for panel, settings, *names in groups:
            for field in fields(settings):
                flag = flag_of(field)
                if flag is not None and field.name not in parameters and (not names or field.name in names):
                    parameters[field.name] = _parameter(field, flag, panel)
        command.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(field: Field[Any], flag: Flag, panel: str) -> inspect.Parameter:
    name = flag.name or field.name.replace("_", "-")
    default = field.default if flag.default is ... else flag.default
    kind = flag.type or type(default)
    option = typer.Option(
        f"--{name}",
        envvar=list(flag.env) or f"PATCHBAY_{name.replace('-', '_').upper()}",
        help=flag.help,
        metavar=flag.metavar,
        min=flag.min,
        max=flag.max,
        rich_help_panel=panel,
    )
    annotation = Annotated[kind | None if default is None else kind, option]  # type: ignore[valid-type]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def reject_flags_as_keys(**keys: str | None) -> None:
    """Raise ConfigurationError for a key that looks like a flag: the key itself is missing."""
    for name, key in keys.items():
        if key is not None and key.startswith("--"):
            raise ConfigurationError(f"--{name.replace('_', '-')} needs a key, and got the flag {key.partition('=')[0]}.")


def verbosity(*, verbose: bool, quiet: bool) -> Literal["quiet", "normal", "verbose"]:
    """Return the log level of a server. Raises ConfigurationError for both flags."""
    if verbose and quiet:
        raise ConfigurationError("--verbose and --quiet exclude each other.")
    return "verbose" if verbose else "quiet" if quiet else "normal"
