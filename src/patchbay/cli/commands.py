"""The commands by name, and how their failures are shown. What a command does is in its own file, imported when it is run."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from patchbay.cli.failures import USAGE_ERROR, fail
from patchbay.errors import PatchbayError

COMMANDS = {
    "proxy": "patchbay.cli.proxy:proxy",
    "serve": "patchbay.cli.serve:serve",
    "chat": "patchbay.cli.chat:chat",
    "plugins": "patchbay.cli.plugins:plugins",
    "approvals": "patchbay.cli.approvals:approvals",
    "hooks": "patchbay.cli.hooks:hooks",
    "audit": "patchbay.cli.audit:audit",
    "tail": "patchbay.cli.tail:tail",
    "parse": "patchbay.cli.parse:parse",
    "formats": "patchbay.cli.formats:formats",
    "demo": "patchbay.cli.demo:demo",
}
"""Each command's name, and the function that carries it out, or the application that holds its own commands."""

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_VARIABLES = re.compile(r" \(env var: '\[?(.*?)\]?'\)")


class _LazyCommands(TyperGroup):
    """Imports a command's module when the command is run or its help is shown."""

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        found = getattr(import_module(module), name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        command.command(cmd_name, context_settings=_CONTEXT)(found)
        return typer.main.get_command(command)


app = typer.Typer(
    cls=_LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=_CONTEXT,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from patchbay import __version__

        print(f"patchbay {__version__}")
        raise typer.Exit


@app.callback()
def patchbay(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Any tool, any model, any process: working tool calls for every OpenAI-compatible model."""


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 called wrongly. Failures are one line on stderr."""
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="patchbay", standalone_mode=False)
    except PatchbayError as error:
        fail(str(error), USAGE_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is nobody to tell
        sys.exit(1)
    except Exception as error:
        # What the parser raises for wrong flags. Its classes moved between versions of typer; the two attributes did not.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if not message:  # "no arguments is help": the help is already shown
            sys.exit(getattr(error, "exit_code", USAGE_ERROR))
        # The parser shows a list of variables as Python does.
        message = _VARIABLES.sub(lambda found: f" (or {found[1]})".replace("'", ""), message)
        fail(message, getattr(error, "exit_code", USAGE_ERROR))
    sys.exit(status if isinstance(status, int) else 0)
