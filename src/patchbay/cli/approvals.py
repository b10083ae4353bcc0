"""``patchbay approvals``: list, decide and watch tool calls that need approval."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchbay.cli.options import CONTEXT, SERVER, Json, Server, TokenFile, command_group
from patchbay.cli.terminal import escape_unencodable, print_json

if TYPE_CHECKING:
    from patchbay.approvals import Verdict
    from patchbay.cli.approvals_client import ApprovalsClient

_Id = Annotated[str, typer.Argument(metavar="ID", help="The request's id.", show_default=False)]
_By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Name to record; your user name by default.")]
_Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason, which is passed to the model.")]

approvals = command_group("approvals", "Review pending tool calls.")


@approvals.callback()
def _prepare() -> None:
    escape_unencodable()


@approvals.command("list", context_settings=CONTEXT)
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Include recent requests that are decided.")] = False,
    server: Server = SERVER,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """List pending requests.

    [bold]Examples[/bold]

      patchbay approvals list

      patchbay approvals list --all --json
    """  # fmt: skip
    from patchbay.approvals.terminal import render, render_deadline, render_outcome

    found = _client(server, token_file).requests(everything=everything)
    if as_json:
        print_json([each.as_json() for each in found])
        return
    for each in found:
        if everything:
            print(render_outcome(each))
        else:
            print(render(each))
            print(f"  {render_deadline(each, time.time())}")
    if not found:
        print("No pending requests.", file=sys.stderr)


@approvals.command(context_settings=CONTEXT)
def show(request_id: _Id, server: Server = SERVER, token_file: TokenFile = None, as_json: Json = False) -> None:
    """Show a request with its complete arguments."""
    from patchbay.approvals import State
    from patchbay.approvals.terminal import render, render_deadline, render_outcome

    found = _client(server, token_file).get(request_id)
    if as_json:
        print_json(found.as_json(whole=True))
        return
    print(render(found, whole=True))
    print(f"  {render_outcome(found)}")
    if found.state is State.PENDING:
        print(f"  {render_deadline(found, time.time())}")


@approvals.command(context_settings=CONTEXT)
def approve(
    request_id: _Id,
    session: Annotated[bool, typer.Option("--session", help="Also approve later calls, as the request describes.")] = False,
    arguments: Annotated[
        str | None,
        typer.Option("--arguments", metavar="JSON", help="Run with these arguments instead; the model is informed."),
    ] = None,
    reason: _Reason = "",
    by: _By = None,
    server: Server = SERVER,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Approve a call, as requested or with other arguments.

    [bold]Examples[/bold]

      patchbay approvals approve 3f0c9a1b2d4e

      patchbay approvals approve 3f0c9a1b2d4e --session

      patchbay approvals approve 3f0c9a1b2d4e --arguments '{"path": "/tmp/a"}'
    """  # fmt: skip
    try:
        edited = None if arguments is None else json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"invalid JSON: {error}", param_hint="--arguments") from None
    if arguments is not None and not isinstance(edited, dict):  # null would approve the call unchanged
        raise typer.BadParameter("not a JSON object", param_hint="--arguments")
    verdict: Verdict = "approve_session" if session else "approve"
    _decide(request_id, verdict, reason, by, server, token_file, as_json=as_json, arguments=edited)


@approvals.command(context_settings=CONTEXT)
def deny(
    request_id: _Id,
    reason: _Reason = "",
    by: _By = None,
    server: Server = SERVER,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Deny a call.

    [bold]Example[/bold]

      patchbay approvals deny 3f0c9a1b2d4e --reason "not that folder"
    """  # fmt: skip
    _decide(request_id, "deny", reason, by, server, token_file, as_json=as_json)


@approvals.command(context_settings=CONTEXT)
def sessions(server: Server = SERVER, token_file: TokenFile = None, as_json: Json = False) -> None:
    """List active session approvals: the calls they cover, who approved, and when they expire."""
    from patchbay.approvals.terminal import render_grant

    found = _client(server, token_file).sessions()
    if as_json:
        print_json([each.as_json() for each in found])
        return
    for each in found:
        print(render_grant(each, time.time()))
    if not found:
        print("No session approvals.", file=sys.stderr)


@approvals.command(context_settings=CONTEXT)
def revoke(request_id: _Id, server: Server = SERVER, token_file: TokenFile = None, as_json: Json = False) -> None:
    """Revoke a session approval.

    [bold]Example[/bold]

      patchbay approvals revoke 3f0c9a1b2d4e
    """  # fmt: skip
    from patchbay.approvals.terminal import render_revoked

    revoked = _client(server, token_file).revoke(request_id)
    if as_json:
        print_json(revoked.as_json())
    else:
        print(render_revoked(revoked))


@approvals.command(context_settings=CONTEXT)
def watch(
    interval: Annotated[float, typer.Option(min=0.1, max=60, metavar="SECONDS", help="Poll interval.")] = 1.0,
    by: _By = None,
    server: Server = SERVER,
    token_file: TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Do not prompt; print each change as a line of JSON.")] = False,
) -> None:
    """Review calls interactively until Ctrl-C: y, n (with a reason), or s for the session.

    [bold]Examples[/bold]

      patchbay approvals watch

      patchbay approvals watch --server http://127.0.0.1:9000 --token-file ~/.config/patchbay/token
    """  # fmt: skip
    from patchbay.cli.approvals_client import Watch

    try:
        Watch(_client(server, token_file), interval=interval, by=_user(by)).run(as_json=as_json)
    except KeyboardInterrupt:
        print(file=sys.stderr)  # after the prompt
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

    client = _client(server, token_file)
    decided = client.decide(client.get(request_id), verdict, reason=reason, by=_user(by), arguments=arguments)
    if as_json:
        print_json(decided.as_json())
    else:
        print(render_outcome(decided))


def _client(server: str, token_file: Path | None) -> ApprovalsClient:
    from patchbay.cli.approvals_client import ApprovalsClient

    return ApprovalsClient(server, token_file)


def _user(by: str | None) -> str:
    from patchbay.approvals.terminal import user_name

    return user_name() if by is None else by
