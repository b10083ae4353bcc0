"""The list of a server's tools, page by page, without those whose definition breaks the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mcp_types as types
from mcp.client import Client
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from patchbay._text import escape_controls, one_line
from patchbay.mcp.limits import MAX_PAGES, MAX_TOOLS

OnInvalid = Callable[[str, str], object]
"""Gets the name of a tool that is left out, and why."""


async def list_tools(client: Client, on_invalid: OnInvalid) -> tuple[types.Tool, ...]:
    """Return the server's tools, each name once. Those beyond MAX_TOOLS are left out.

    Raises ValidationError where the list itself is invalid.
    """
    if client.server_capabilities.tools is None:
        return ()
    found: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        try:
            page = await client.list_tools(cursor=cursor)
        except ValidationError:  # one tool can make the SDK refuse all
            _leave_out_invalid(client, on_invalid)
            page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None or len(found) >= MAX_TOOLS:
            break
    return _without_ambiguous(found, on_invalid)[:MAX_TOOLS]


def describe_invalid(error: ValidationError) -> str:
    """Return the first place where a server's result breaks the protocol, and what is wrong there."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return escape_controls(one_line(f"{place}: {first['msg']}", 300))


def _without_ambiguous(tools: Iterable[types.Tool], on_invalid: OnInvalid) -> tuple[types.Tool, ...]:
    """Leave out the names that have two definitions: one could be checked and the other used."""
    by_name: dict[str, types.Tool] = {}
    ambiguous = {each.name for each in tools if by_name.setdefault(each.name, each) != each}
    for name in ambiguous:
        del by_name[name]
        on_invalid(name[:100], "the server has two definitions of it")
    return tuple(by_name.values())


def _leave_out_invalid(client: Client, on_invalid: OnInvalid) -> None:
    """Make the client drop invalid tools from every list from now on, also where the SDK itself requests one."""
    dispatcher: Any = client.session._dispatcher  # noqa: SLF001  (results are validated right behind it)
    send = dispatcher.send_raw_request

    async def send_and_filter(method: str, *arguments: Any, **options: Any) -> Any:
        result = await send(method, *arguments, **options)
        return _valid_only(result, client.protocol_version, on_invalid) if method == "tools/list" else result

    dispatcher.send_raw_request = send_and_filter


def _valid_only(page: Any, version: str, on_invalid: OnInvalid) -> Any:
    tools = page.get("tools")
    if not isinstance(tools, list):
        return page
    kept = []
    for number, each in enumerate(tools[:MAX_TOOLS], 1):
        try:
            validate_server_result("tools/list", version, {**page, "tools": [each]})
            types.Tool.model_validate(each, by_name=False)
        except ValidationError as error:
            name = each.get("name") if isinstance(each, dict) else None
            why = describe_invalid(error).removeprefix("tools.0").lstrip(".: ")
            on_invalid(name[:100] if isinstance(name, str) else f"number {number}", why)
        else:
            kept.append(each)
    return {**page, "tools": kept}
