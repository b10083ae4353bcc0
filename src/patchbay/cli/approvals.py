"""``patchbay approvals``: list, decide and watch tool calls that need approval."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchbay.cli.options import CONTEXT, SERVER, Json, Server, TokenFile, command_group
from patchbay.cli.terminal import escape_unencodable, print_json
from patchbay.errors import ConfigurationError

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
    always: Annotated[
        bool, typer.Option("--always", help="Also write a standing permission, which is shown first: calls like this one run.")
    ] = False,
    below: Annotated[
        list[str] | None,
        typer.Option("--below", metavar="NAME=FOLDER", help="With --always: any path below the folder. Can be repeated."),
    ] = None,
    any_: Annotated[
        list[str] | None,
        typer.Option("--any", metavar="NAME", help="With --always: any value of this argument. Can be repeated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --always: do not ask before the permission is written.")] = False,
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

      patchbay approvals approve 3f0c9a1b2d4e --always --below path=/srv/data
    """  # fmt: skip
    try:
        edited = None if arguments is None else json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"invalid JSON: {error}", param_hint="--arguments") from None
    if arguments is not None and not isinstance(edited, dict):  # null would approve the call unchanged
        raise typer.BadParameter("not a JSON object", param_hint="--arguments")
    if (below or any_ or yes) and not always:
        raise typer.BadParameter("is for --always", param_hint="--below, --any, --yes")
    if always and (session or arguments is not None):
        raise typer.BadParameter("use it without --session and --arguments", param_hint="--always")
    criteria: dict[str, dict[str, Any]] = {
        name: {"below": folder.rstrip("/")} for name, _, folder in (each.partition("=") for each in below or ())
    }
    criteria |= {name: {"any": True} for name in any_ or ()}
    permission = _permission(request_id, criteria, server, token_file, yes=yes) if always else None
    verdict: Verdict = "approve_session" if session else "approve_always" if always else "approve"
    _decide(request_id, verdict, reason, by, server, token_file, as_json=as_json, arguments=edited, permission=permission)


def _permission(request_id: str, criteria: dict[str, Any], server: str, token_file: Path | None, *, yes: bool) -> dict[str, Any]:
    """Show the permission and let the person confirm it; return its criteria."""
    from patchbay.approvals.terminal import render_criterion, render_permission

    narrowest, steps = _client(server, token_file).proposal(request_id)
    parts = {"arguments": narrowest.arguments, "facts": narrowest.facts}
    if unknown := criteria.keys() - {name for part in parts.values() for name in part}:
        raise typer.BadParameter(f"the call has no {', '.join(sorted(unknown))}", param_hint="--below, --any")
    chosen = {part: {name: criteria[name] for name in known if name in criteria} for part, known in parts.items()}
    for part, criteria_of_part in chosen.items():
        for name, criterion in criteria_of_part.items():
            if criterion not in (offered := steps[part][name]):
                choices = "; ".join(map(render_criterion, offered))
                raise typer.BadParameter(f"{name} can be one of: {choices}", param_hint="--below, --any")
    shown = replace(narrowest, **{part: {**known, **chosen[part]} for part, known in parts.items()})  # type: ignore[arg-type]
    print(render_permission(shown), file=sys.stderr)
    if not yes:
        print("Write this permission? [y/N]: ", end="", file=sys.stderr, flush=True)  # standard output has the result alone
        answer = sys.stdin.readline()
        if not answer:
            raise ConfigurationError("there is no input to confirm the permission with: --yes writes it.")
        if answer.strip().lower() not in ("y", "yes"):
            raise typer.Abort
    return chosen


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
def permissions(server: Server = SERVER, token_file: TokenFile = None, as_json: Json = False) -> None:
    """List standing permissions: the calls that run without a question, and who allowed them."""
    from patchbay.approvals.terminal import render_permission

    found = _client(server, token_file).permissions()
    if as_json:
        print_json([each.as_json() for each in found])
        return
    for each in found:
        print(render_permission(each))
    if not found:
        print("No standing permissions.", file=sys.stderr)


@approvals.command(context_settings=CONTEXT)
def revoke(request_id: _Id, server: Server = SERVER, token_file: TokenFile = None, as_json: Json = False) -> None:
    """Revoke a session approval or a standing permission.

    [bold]Example[/bold]

      patchbay approvals revoke 3f0c9a1b2d4e
    """  # fmt: skip
    from patchbay.approvals.terminal import render_permission, render_revoked
    from patchbay.cli.approvals_client import UnknownRequestError

    client = _client(server, token_file)
    try:
        permission = client.revoke_permission(request_id)
    except UnknownRequestError:
        try:
            grant = client.revoke(request_id)
        except UnknownRequestError:
            raise UnknownRequestError(
                f"There is no session approval or standing permission {request_id} (any more): "
                "`patchbay approvals sessions` and `patchbay approvals permissions` list them.",
                is_transient=False,
            ) from None
        print_json(grant.as_json()) if as_json else print(render_revoked(grant))
    else:
        print_json(permission.as_json()) if as_json else print(f"{render_permission(permission)}\n  taken back")


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
    permission: Any = None,
) -> None:
    from patchbay.approvals.terminal import render_outcome

    client = _client(server, token_file)
    request = client.get(request_id)
    decided = client.decide(request, verdict, reason=reason, by=_user(by), arguments=arguments, permission=permission)
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
