"""The commands by name. A command's module is imported when the command runs."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from patchbay.cli.options import CONTEXT
from patchbay.cli.terminal import USAGE_ERROR, fail
from patchbay.errors import PatchbayError

COMMANDS = {
    "proxy": ("patchbay.cli.proxy:proxy", "Give any OpenAI client working tool calls on any model server."),
    "local": ("patchbay.cli.local:local", "Run a small model here, or any GGUF file, with working tool calls."),
    "serve": ("patchbay.cli.serve:serve", "Serve the tool registry for other processes."),
    "worker": ("patchbay.cli.worker:worker", "Carry out durable runs of agents."),
    "chat": ("patchbay.cli.chat:chat", "Chat in the terminal with a model and its tools."),
    "tools": ("patchbay.cli.tools:tools", "List, show and call the tools of a server."),
    "plugins": ("patchbay.cli.plugins:plugins", "Run plugins in separate processes; register their tools."),
    "mcp": ("patchbay.cli.mcp:mcp", "Use the tools of MCP servers, manage the servers, and be one."),
    "approvals": ("patchbay.cli.approvals:approvals", "Review pending tool calls."),
    "hooks": ("patchbay.cli.hooks:hooks", "List configured hooks; check a hook process."),
    "audit": ("patchbay.cli.audit:audit", "Show past tool calls: caller, tool, outcome, decisions."),
    "db": ("patchbay.cli.db:db", "Check a server's database, or make and upgrade its tables."),
    "tail": ("patchbay.cli.tail:tail", "Follow a server's turns and tool calls as they happen."),
    "doctor": ("patchbay.cli.doctor:doctor", "Examine a model server and the local configuration."),
    "parse": ("patchbay.cli.parse:parse", "Show how a model's text is read: content, calls, repairs."),
    "formats": ("patchbay.cli.formats:formats", "List the formats, or find the one that a model writes."),
    "demo": ("patchbay.cli.demo:demo", "Watch a text-only model call two tools through the proxy."),
}
"""Function or group of each command, and its line in ``patchbay --help``, which imports none of them."""

_LINE_BREAK = re.compile(r"(?<=\S)\n(?=\S)")
_VARIABLES = re.compile(r" \(env var: '\[?(.*?)\]?'\)")


class _LazyCommands(TyperGroup):
    """Imports a command's module when the command runs or shows its help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name in COMMANDS else command, rest


def _load(name: str) -> Any:
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        found.command(name, context_settings=CONTEXT)(function)
    command = typer.main.get_command(found)
    _tidy_help(command)
    return command


def _tidy_help(command: Any) -> None:
    """Leave the line breaks of paragraphs to the terminal's width, and show no type for switches, which take no value."""
    command.help = _LINE_BREAK.sub(" ", command.help or "")
    for option in command.get_params(typer.Context(command, **command.context_settings)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for each in getattr(command, "commands", {}).values():
        _tidy_help(each)


app = typer.Typer(
    cls=_LazyCommands,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich would double the start time of --help
    context_settings=CONTEXT,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from patchbay import __version__

        print(f"patchbay {__version__}")
        raise typer.Exit


@app.callback()
def patchbay(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Any tool, any model, any process: working tool calls for every OpenAI-compatible model."""
    del version
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(USAGE_ERROR)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 usage error. Failures are one line on stderr."""
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="patchbay", standalone_mode=False)
    except PatchbayError as error:
        hint = getattr(error, "hint", "")
        fail(f"{error}. {hint}." if hint else str(error), getattr(error, "exit_status", USAGE_ERROR))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # stdout is closed, so is probably stderr
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else what is left fails again at exit
        fail(f"standard output: {error.strerror}", 1)
    except Exception as error:
        # A usage error of the parser, whose class differs between versions of typer.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if not message:  # "no arguments is help": already shown
            sys.exit(getattr(error, "exit_code", USAGE_ERROR))
        message = message.replace(": Value error, ", ": ")  # pydantic's prefix
        # The parser formats several variables as a Python list.
        message = _VARIABLES.sub(lambda found: f" (or {found[1]})".replace("'", ""), message)
        fail(message, getattr(error, "exit_code", USAGE_ERROR))
    sys.exit(status if isinstance(status, int) else 0)
