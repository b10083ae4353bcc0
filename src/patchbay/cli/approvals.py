"""``patchbay approvals``: look at the calls that wait for somebody's yes, and decide them.

What lives here: flags, and what is printed. What does not: the live terminal (``approvals_watch``), and what is asked of the
server (``approvals_client``).
"""

from __future__ import annotations

import getpass
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from patchbay.cli.failures import fail
from patchbay.errors import ConfigurationError, PatchbayError

if TYPE_CHECKING:
    from patchbay.approvals import ApprovalRequest, Verdict
    from patchbay.cli.approvals_client import ApprovalsClient

T = TypeVar("T")

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

_Server = Annotated[str, typer.Option("--server", metavar="URL", envvar="PATCHBAY_SERVER", help="The server that asks.")]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", envvar="PATCHBAY_TOKEN_FILE", help="File of mode 0600 with the server's bearer token."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="The request's id.", show_default=False)]
_By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides, for the record; else your user name.")]
_Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; the model is told.")]

_SERVER = "http://127.0.0.1:48911"

approvals = typer.Typer(
    name="approvals",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=_CONTEXT,
    help="Look at the calls that wait for somebody's yes, and decide them.",
)


@approvals.callback()
def _prepare() -> None:
    # Calls are in every language, and a terminal may have another encoding.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@approvals.command("list", context_settings=_CONTEXT)
def list_(
    everything: Annotated[bool, typer.Option("--all", help="The last requests too, whatever became of them.")] = False,
    server: _Server = _SERVER,
    token_file: _TokenFile = None,
    as_json: _Json = False,
) -> None:
    """List what waits to be approved.

    [bold]Examples[/bold]

      patchbay approvals list

      patchbay approvals list --all --json
    """  # fmt: skip
    from patchbay.approvals.terminal import render, render_outcome, render_time_left

    found = _told(lambda client: client.listed(everything=everything), server, token_file)
    if as_json:
        print(json.dumps([each.as_json() for each in found], indent=2))
        return
    for each in found:
        if everything:
            print(render_outcome(each))
        else:
            print(render(each))
            print(f"  {render_time_left(each, time.time())}")
    if not found:
        print("Nothing waits to be approved.", file=sys.stderr)


@approvals.command(context_settings=_CONTEXT)
def show(request_id: _Id, server: _Server = _SERVER, token_file: _TokenFile = None, as_json: _Json = False) -> None:
    """Show one request, with all of its arguments."""
    from patchbay.approvals import State
    from patchbay.approvals.terminal import render, render_outcome, render_time_left

    found = _told(lambda client: client.get(request_id), server, token_file)
    if as_json:
        print(json.dumps(found.as_json(whole=True), indent=2))
        return
    print(render(found, whole=True))
    print(f"  {render_outcome(found)}")
    if found.state is State.PENDING:
        print(f"  {render_time_left(found, time.time())}")


@approvals.command(context_settings=_CONTEXT)
def approve(
    request_id: _Id,
    session: Annotated[bool, typer.Option("--session", help="For other calls of the session too, as the request says.")] = False,
    arguments: Annotated[
        str | None,
        typer.Option("--arguments", metavar="JSON", help="Let it run with these arguments instead; the model is told."),
    ] = None,
    reason: _Reason = "",
    by: _By = None,
    server: _Server = _SERVER,
    token_file: _TokenFile = None,
    as_json: _Json = False,
) -> None:
    """Let a call run, exactly as it is, or with other arguments.

    [bold]Examples[/bold]

      patchbay approvals approve 3f0c9a1b2d4e

      patchbay approvals approve 3f0c9a1b2d4e --session

      patchbay approvals approve 3f0c9a1b2d4e --arguments '{"path": "/tmp/a"}'
    """  # fmt: skip
    try:
        edited = None if arguments is None else json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"this is no JSON: {error}", param_hint="--arguments") from None
    if arguments is not None and not isinstance(edited, dict):  # null would approve the call as it is
        raise typer.BadParameter("this is no object of arguments", param_hint="--arguments")
    verdict: Verdict = "approve_session" if session else "approve"
    _decide(request_id, verdict, reason, by, server, token_file, as_json=as_json, arguments=edited)


@approvals.command(context_settings=_CONTEXT)
def deny(
    request_id: _Id,
    reason: _Reason = "",
    by: _By = None,
    server: _Server = _SERVER,
    token_file: _TokenFile = None,
    as_json: _Json = False,
) -> None:
    """Let a call not run.

    [bold]Example[/bold]

      patchbay approvals deny 3f0c9a1b2d4e --reason "not that folder"
    """  # fmt: skip
    _decide(request_id, "deny", reason, by, server, token_file, as_json=as_json)


@approvals.command(context_settings=_CONTEXT)
def sessions(server: _Server = _SERVER, token_file: _TokenFile = None, as_json: _Json = False) -> None:
    """List the approvals for a session that hold: which calls are not asked about any more, by whose yes, and until when."""
    from patchbay.approvals.terminal import render_grant

    found = _told(lambda client: client.sessions(), server, token_file)
    if as_json:
        print(json.dumps([each.as_json() for each in found], indent=2))
        return
    for each in found:
        print(render_grant(each, time.time()))
    if not found:
        print("Nothing is approved for a session.", file=sys.stderr)


@approvals.command(context_settings=_CONTEXT)
def revoke(request_id: _Id, server: _Server = _SERVER, token_file: _TokenFile = None, as_json: _Json = False) -> None:
    """Take back an approval for a session: the calls that it is for are asked about again.

    [bold]Example[/bold]

      patchbay approvals revoke 3f0c9a1b2d4e
    """  # fmt: skip
    from patchbay.approvals.terminal import render_revoked

    revoked = _told(lambda client: client.revoke(request_id), server, token_file)
    print(json.dumps(revoked.as_json(), indent=2) if as_json else render_revoked(revoked))


@approvals.command(context_settings=_CONTEXT)
def watch(
    interval: Annotated[float, typer.Option(min=0.1, max=60, metavar="SECONDS", help="How often to look.")] = 1.0,
    by: _By = None,
    server: _Server = _SERVER,
    token_file: _TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Ask nothing; print each change as a line of JSON.")] = False,
) -> None:
    """Ask about each call as it comes, until Ctrl-C: y, n (and why), or s for the session.

    [bold]Examples[/bold]

      patchbay approvals watch

      patchbay approvals watch --server http://127.0.0.1:9000 --token-file ~/.config/patchbay/token
    """  # fmt: skip
    from patchbay.cli.approvals_watch import Watch

    client = _client(server, token_file)
    try:
        Watch(client, interval=interval, by=_name(by)).run(as_json=as_json)
    except ConfigurationError:
        raise
    except PatchbayError as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        print(file=sys.stderr)  # behind the question
        raise


def _decide(
    request_id: str,
    verdict: Verdict,
    reason: str,
    by: str | None,
    server: str,
    token_file: Path | None,
    *,
    as_json: bool,
    arguments: Any = None,
) -> None:
    from patchbay.approvals.terminal import render_outcome

    def asked(client: ApprovalsClient) -> ApprovalRequest:
        return client.decide(client.get(request_id), verdict, reason=reason, by=_name(by), arguments=arguments)

    decided = _told(asked, server, token_file)
    print(json.dumps(decided.as_json(), indent=2) if as_json else render_outcome(decided))


def _told(ask: Callable[[ApprovalsClient], T], server: str, token_file: Path | None) -> T:
    """Return what the server says; say what it refuses."""
    try:
        return ask(_client(server, token_file))
    except ConfigurationError:
        raise
    except PatchbayError as error:
        fail(str(error), 1)


def _client(server: str, token_file: Path | None) -> ApprovalsClient:
    from patchbay.cli.approvals_client import ApprovalsClient

    return ApprovalsClient(server, token_file)


def _name(by: str | None) -> str:
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return ""
