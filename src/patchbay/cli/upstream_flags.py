"""The flags that say how a model's server is asked: the same wherever there is an upstream.

What lives here: their types, for the commands' signatures. What does not: their defaults, which stand with each command.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import typer

from patchbay.errors import ConfigurationError

SERVER = "Server"
TOOLS = "Tools and text"


class SystemInjection(StrEnum):
    """Where the tool instructions go."""

    merge = "merge"
    prepend = "prepend"


class ToolMode(StrEnum):
    """Who is to understand tools: the model, or the text contract."""

    auto = "auto"
    text = "text"
    native = "native"


UpstreamKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        envvar=["UPSTREAM_API_KEY", "PATCHBAY_UPSTREAM_KEY"],
        help="API key for the upstream; without it, each client's own key goes there. "
        "Better given by the environment: a flag can be read in the list of processes.",
    ),
]

UpstreamTimeout = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="SECONDS",
        envvar="PATCHBAY_UPSTREAM_TIMEOUT",
        rich_help_panel=SERVER,
        help="How long the upstream may send nothing at all; 0 is without limit.",
    ),
]

DrainTimeout = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="SECONDS",
        envvar="PATCHBAY_DRAIN_TIMEOUT",
        rich_help_panel=SERVER,
        help="How long running requests may take to finish when it is told to stop.",
    ),
]

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", rich_help_panel=SERVER, help="Show a line on stderr for each request as well.")
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        rich_help_panel=SERVER,
        help="Show neither failed requests nor what is learnt of models, only errors of the server itself.",
    ),
]


def verbosity(*, verbose: bool, quiet: bool) -> Literal["quiet", "normal", "verbose"]:
    """What the terminal shows. Raises ConfigurationError for both flags."""
    if verbose and quiet:
        raise ConfigurationError("--verbose and --quiet exclude each other.")
    return "verbose" if verbose else "quiet" if quiet else "normal"


Tools = Annotated[
    ToolMode,
    typer.Option(
        envvar="PATCHBAY_TOOLS",
        rich_help_panel=TOOLS,
        help="auto asks natively first and learns per model; text always teaches the contract; native passes tools on.",
    ),
]

FormatName = Annotated[
    str,
    typer.Option(
        metavar="NAME|PATH",
        envvar="PATCHBAY_FORMAT",
        rich_help_panel=TOOLS,
        help=(
            "How the model is told of tools and writes its calls: a format, a file of one's own (.toml), or a "
            "checkpoint's files. auto goes by the model's name, and reads all formats."
        ),
    ),
]

RepairRounds = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        envvar="PATCHBAY_REPAIR_ROUNDS",
        rich_help_panel=TOOLS,
        help="How often a call whose arguments do not fit its schema is asked for again.",
    ),
]

XmlTools = Annotated[
    list[str] | None,
    typer.Option(
        "--xml-tool",
        metavar="TAG=TOOL",
        envvar="PATCHBAY_XML_TOOLS",
        rich_help_panel=TOOLS,
        show_default=False,
        help="Read <TAG>…</TAG> as a call of TOOL; may be repeated.",
    ),
]


def xml_tools(pairs: list[str] | None) -> dict[str, str] | None:
    """The tools by their tags. Raises ConfigurationError."""
    if not pairs:
        return None
    from patchbay.formats.regions.xmltools import check_xml_tools

    for pair in pairs:
        if "=" not in pair:
            raise ConfigurationError(f"--xml-tool {pair!r} must be TAG=TOOL, such as bash=run_shell.")
    found = dict(pair.partition("=")[::2] for pair in pairs)
    check_xml_tools(found)
    return found


CallTag = Annotated[
    str,
    typer.Option(metavar="TAG", envvar="PATCHBAY_TAG", rich_help_panel=TOOLS, help="Label of the blocks that hold calls."),
]

NoExamples = Annotated[
    bool,
    typer.Option(
        "--no-examples",
        envvar="PATCHBAY_NO_EXAMPLES",
        rich_help_panel=TOOLS,
        help="Leave the worked example out of the instructions.",
    ),
]

Injection = Annotated[
    SystemInjection,
    typer.Option(
        envvar="PATCHBAY_SYSTEM_INJECTION",
        rich_help_panel=TOOLS,
        help="Merge the instructions into the client's system message, or prepend one.",
    ),
]

ReasoningTag = Annotated[
    str,
    typer.Option(
        metavar="TAG",
        envvar="PATCHBAY_REASONING_TAG",
        rich_help_panel=TOOLS,
        help="Tag around the model's reasoning, which is split out of the text.",
    ),
]

NoReasoning = Annotated[
    bool,
    typer.Option("--no-reasoning", envvar="PATCHBAY_NO_REASONING", rich_help_panel=TOOLS, help="Leave reasoning in the text."),
]


def refuse_flags_as_keys(**keys: str | None) -> None:
    """Raise ConfigurationError for a key that is a flag: the key itself was forgotten."""
    for name, key in keys.items():
        if key is not None and key.startswith("--"):
            flag = "--" + name.replace("_", "-")
            raise ConfigurationError(f"{flag} needs a key, and got the flag {key.partition('=')[0]}.")
