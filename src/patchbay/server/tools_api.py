"""The console's tools: ``/api/console/tools``, with what each costs in a prompt, and changed definitions of MCP servers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from patchbay._redaction import Redactor
from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.mcp.host import McpHost
from patchbay.mcp.pins import digest
from patchbay.models.providers import provider_at
from patchbay.models.tool_encoder import ToolEncoder
from patchbay.models.wire import decode, encode
from patchbay.server.admin_api import admin_router
from patchbay.server.errors import NotFoundError
from patchbay.server.recent_calls import CallOutcome, quantile
from patchbay.server.routing import KNOWN_PARAMETERS
from patchbay.server.turns import Turn, TurnStore, record_of
from patchbay.server.usage import CallKey, Tally
from patchbay.tools.registry import DEFAULT_ROLE, ToolRegistry
from patchbay.tools.registry.registration import Registration, Snapshot
from patchbay.tools.threads import run_in_thread
from patchbay.types import ToolSpec

BYTES_PER_TOKEN: Final = 4.0
"""Where no request was counted: as elsewhere in this program."""
_USUAL: Final = (1.5, 8.0)
"""Bytes per token of real models; a server that counts otherwise does not count tokens."""
_LAST_TURNS: Final = 40
"""How many of a role's last turns are looked at."""
_SHOWN_CALLS: Final = 50
_MEDIA: Final = re.compile(rb'"(?:image_url|input_audio|file_data)"|;base64,')
_NO_STORE: Final = {"cache-control": "no-store"}

_Role = Annotated[str, Query(max_length=200, description="A role; the first one by default.")]
Json = dict[str, Any]


class _DefinitionChangedError(PatchbayError):
    code = "definition_changed"
    status = 409


class Acceptance(BaseModel):
    """Changed definitions of an MCP server that a person has seen."""

    model_config = ConfigDict(extra="forbid")

    server: str = Field(max_length=200)
    digest: str = Field(max_length=100, description="The `digest` of what was shown.")


class _ToolsOf(msgspec.Struct):
    tools: list[msgspec.Raw] | None = None


@dataclass(frozen=True)
class _Sent:
    """A tool as models get it, with its bytes there; None and the reason for one that they do not get."""

    element: Json | None = None
    problem: str = ""
    size: int = 0


@dataclass
class _Offer:
    """A tool in the requests of turns: as the last of them had it, with its bytes there."""

    element: Json
    size: int
    is_client: bool
    turn: str
    time: float


@dataclass
class _Activity:
    """What happened in a role: the tools that its last turns offered, bytes per token there, the tokens of a prompt, and calls.

    ``counts`` are the calls and the failed ones since the start, by tool; those of a client's tools never fail.
    """

    offers: dict[str, _Offer] = field(default_factory=dict)
    bytes_per_token: float = BYTES_PER_TOKEN
    measured: int = 0
    prompt_tokens: int | None = None
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def tokens(self, size: int) -> int:
        """Estimate the tokens of so many bytes of JSON."""
        return round(size / self.bytes_per_token)


class ToolViews:
    """A server's tools as JSON. ``registry`` and ``mcp`` are None for a proxy, whose tools are those of its turns."""

    def __init__(
        self,
        turns: TurnStore,
        *,
        registry: ToolRegistry | None = None,
        mcp: McpHost | None = None,
        upstream: str | None = None,
    ) -> None:
        self.turns = turns
        self.mcp = mcp
        self._registry = registry
        self._upstream = upstream or ""
        self._encoded: dict[str, tuple[Snapshot, dict[str, _Sent]]] = {}

    def listing(self, role: str, turns: Sequence[Turn], calls: Mapping[CallKey, Tally]) -> Json:
        """Return the tools of a role ("": the first one), without their schemas. Raises UnknownRoleError."""
        role, snapshot = self._snapshot(role)
        activity = self._activity(role, turns, calls, snapshot)
        tools = [self._registered(snapshot, each, activity) for each in snapshot.registrations.values()] if snapshot else []
        tools += [self._offered(role, name, activity) for name in activity.offers]
        return {
            "role": role,
            "roles": list(self._registry.roles) if self._registry is not None else [],
            "tools": tools,
            "servers": self._servers(),
            "estimate": {
                "bytes_per_token": round(activity.bytes_per_token, 2),
                "requests": activity.measured,
                "prompt_tokens": activity.prompt_tokens,
            },
        }

    def detail(self, role: str, name: str, turns: Sequence[Turn], calls: Mapping[CallKey, Tally]) -> Json:
        """Return one tool with its schema, as it was given and as models get it, and its last calls. Raises NotFoundError."""
        role, snapshot = self._snapshot(role)
        activity = self._activity(role, turns, calls, snapshot)
        recent = [self._outcome(each) for each in reversed(self.turns.recent_calls.of(role, name)[-_SHOWN_CALLS:])]
        registration = snapshot.registrations.get(name) if snapshot is not None else None
        if snapshot is not None and registration is not None:
            callbacks = [each for each, _hidden in snapshot.replicas.get(name, ())] or [registration]
            more: Json = {
                "parameters": dict(registration.parameters),
                "sent": self._sent(snapshot)[name].element,
                "annotations": dict(registration.annotations),
                "timeout_seconds": registration.timeout_seconds,
                "endpoint": ", ".join((each.callback_url or "").partition("?")[0] for each in callbacks),
            }
            return {**self._registered(snapshot, registration, activity), **more, "recent": recent}
        if name not in activity.offers:
            raise NotFoundError(f"There is no tool {name[:100]!r} (any more).")
        element = activity.offers[name].element
        return {
            **self._offered(role, name, activity),
            "parameters": _function(element).get("parameters") or {},
            "sent": element,
            "annotations": {},
            "timeout_seconds": None,
            "endpoint": "",
            "recent": recent,
        }

    def changes(self, server: str) -> Json:
        """Return the changed definitions of an MCP server, with their digest. Raises NotFoundError."""
        if self.mcp is None or server not in {each.name for each in self.mcp.status}:
            raise NotFoundError(f"There is no MCP server {server[:100]!r} (any more).")
        changed = self.mcp.changes(server)
        tools = [{"tool": tool, "accepted": _text(old), "now": _text(new)} for tool, (old, new) in sorted(changed.items())]
        return {"server": server, "digest": digest(changed), "tools": tools}

    def _snapshot(self, role: str) -> tuple[str, Snapshot | None]:
        if self._registry is None:
            return DEFAULT_ROLE, None
        role = role or next(iter(self._registry.roles), "")
        return role, self._registry.snapshot(role)

    def _registered(self, snapshot: Snapshot, registration: Registration, activity: _Activity) -> Json:
        name = registration.name
        sent = self._sent(snapshot)[name]
        summary = {
            "name": name,
            "description": registration.description,
            "source": registration.source,
            "kind": _kind(registration),
            "state": snapshot.state(name) if sent.element is not None else "left out",
            "problem": sent.problem or self._hidden_because(snapshot, registration),
            "can_call": name not in snapshot.hidden,
        }
        return {**summary, **self._counted(snapshot.role, name, activity), "tokens": activity.tokens(sent.size)}

    def _hidden_because(self, snapshot: Snapshot, registration: Registration) -> str:
        """Return why a tool is hidden, "" for one that is not."""
        if registration.name not in snapshot.hidden:
            return ""
        statuses = self.mcp.status if self.mcp is not None else ()
        server = next((each for each in statuses if f"mcp:{each.name}" == registration.source), None)
        if server is not None:
            return f"the MCP server is not connected: {server.problem or server.state}"
        return f"its callback does not answer: {registration.origin}"

    def _offered(self, role: str, name: str, activity: _Activity) -> Json:
        """Describe a tool that is in no registry: a client's, a hook's, or the loop's (its search, its reader of results)."""
        offer, calls = activity.offers[name], self.turns.recent_calls.of(role, name)
        source = calls[-1].source if calls else ""
        description = _function(offer.element).get("description")
        summary = {
            "name": name,
            "description": description if isinstance(description, str) else "",
            "source": source,
            "kind": "client" if offer.is_client else "hook" if source.startswith("hook:") else "added",
            "state": "offered",
            "problem": "",
            "can_call": False,
            "turn": offer.turn,
            "offered": offer.time,
        }
        return {**summary, **self._counted(role, name, activity), "tokens": activity.tokens(offer.size)}

    def _counted(self, role: str, name: str, activity: _Activity) -> Json:
        recent = self.turns.recent_calls.of(role, name)
        failed = [each for each in recent if each.code]
        calls, errors = activity.counts.get(name, (len(recent), len(failed)))  # only so many names have counts of their own
        times = {"p50": quantile(recent, 0.5), "p95": quantile(recent, 0.95)}
        return {"calls": calls, "errors": errors, **times, "failed": self._outcome(failed[-1]) if failed else None}

    def _outcome(self, call: CallOutcome) -> Json:
        """Return a call as JSON, with its turn if that can be looked at."""
        return {**call._asdict(), "turn": call.turn if self.turns.get(call.turn) is not None else ""}

    def _sent(self, snapshot: Snapshot) -> dict[str, _Sent]:
        """Return each tool of a role as models get it, by its own name."""
        known = self._encoded.get(snapshot.role)
        if known is None or known[0] is not snapshot:
            sent = {each.name: self._encode(snapshot, each) for each in snapshot.registrations.values()}
            known = self._encoded[snapshot.role] = snapshot, sent
        return known[1]

    def _encode(self, snapshot: Snapshot, registration: Registration) -> _Sent:
        name = registration.name
        if (problem := snapshot.problem(name)) is not None:
            return _Sent(problem=problem)
        try:
            tool = snapshot.tools.get(name) or registration.tool
            if tool is not None and not tool.offered:
                return _Sent(problem="it is not offered to models, which may still call it by its name")
            spec = tool.spec if tool is not None else ToolSpec(name, registration.description, registration.parameters)
            tools = ToolEncoder(provider_at(self._upstream)).of([spec]).tools
            element: Json = json.loads(json.dumps(tools[0], default=dict)) if tools else {}
        except Exception as error:  # noqa: BLE001  (a tool of the program may do anything; it must not take the list with it)
            return _Sent(problem=f"it cannot be described: {type(error).__name__}: {error}")
        if not element:
            return _Sent(problem="the model's server does not take its schema")
        return _Sent(element, size=len(encode(element)))

    def _servers(self) -> list[Json]:
        if self.mcp is None:
            return []
        return [
            {
                "name": each.name,
                "state": each.state,
                "problem": each.problem,
                "tools": len(each.tools),
                "changed": list(each.changed),
            }
            for each in self.mcp.status
        ]

    def _activity(self, role: str, turns: Sequence[Turn], calls: Mapping[CallKey, Tally], snapshot: Snapshot | None) -> _Activity:
        activity, own = _Activity(), set[str]()
        if snapshot is not None:  # by the names that models get, too
            own = {
                *snapshot.registrations,
                *(_name(each.element) for each in self._sent(snapshot).values() if each.element is not None),
            }
        if self.mcp is not None:  # earlier turns offered what has changed since
            own.update(server.tool_name(tool) for server in self.mcp.servers for tool in self.mcp.changes(server.name))
        for (name, where, _), tally in calls.items():
            if where == role or (where == "" and snapshot is None):  # the turns of a plain proxy have no role
                known = activity.counts.get(name, (0, 0))
                activity.counts[name] = known[0] + tally.count, known[1] + tally.errors
        sizes: list[int] = []
        counted: list[tuple[int, int]] = []
        for turn in [each for each in turns if snapshot is None or each.agent in (role, "")][:_LAST_TURNS]:
            record, body = record_of(turn), turn.attempts[0].body if turn.attempts else None
            given = turn.attempts[0].counts[0] if record.rounds > 1 else record.prompt_tokens
            if body is not None and not _MEDIA.search(body):  # whose bytes are not tokens
                sizes.append(len(body))
                counted += [(len(body), given)] if given else []
            offering = next((each for each in reversed(turn.attempts) if each.tools and (each.source or each.body)), None)
            if offering is None:
                continue
            client: set[str] | None = None
            for raw in _tools_of(offering.source or offering.body):
                name = _name(decode(bytes(raw)))
                if name in activity.offers or name in own:
                    continue
                if client is None:
                    client = {_name(decode(bytes(each))) for each in _tools_of(turn.body)}
                element = decode(turn.redact(bytes(raw)))
                activity.offers[name] = _Offer(element, len(raw), name in client, turn.id, turn.began)
        measured = sum(size for size, _ in counted) / max(1, sum(tokens for _, tokens in counted))
        if _USUAL[0] <= measured <= _USUAL[1]:
            activity.bytes_per_token, activity.measured = measured, len(counted)
        activity.prompt_tokens = activity.tokens(round(median(sizes))) if sizes else None
        return activity


def make_tools_router(views: ToolViews, *, needs_token: bool) -> APIRouter:
    """Return the routes over ``views``. ``needs_token``: the server has a token."""
    responses: dict[int | str, dict[str, Any]] = {401: {"description": "The server has a token, which was not sent."}}
    router = admin_router(
        "console/tools", "see the tools", needs_token=needs_token, responses=responses, dependencies=[KNOWN_PARAMETERS]
    )
    gone: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such role, tool or server, or not any more."}}
    conflict: dict[int | str, dict[str, Any]] = {409: {"description": "The definitions are not those of the digest any more."}}

    @router.get("", responses=gone, summary="The tools of a role: state, calls, and tokens in a prompt")
    async def list_tools(role: _Role = "") -> Response:
        newest, calls = views.turns.newest(), views.turns.usage.calls
        return _response(await run_in_thread(lambda: _encoded(views.listing(role, newest, calls))))

    @router.get("/definition", responses=gone, summary="One tool: its schema as models get it, and its last calls")
    async def get_tool(name: Annotated[str, Query(max_length=1000)], role: _Role = "") -> Response:
        newest, calls = views.turns.newest(), views.turns.usage.calls
        return _response(await run_in_thread(lambda: _encoded(views.detail(role, name, newest, calls))))

    @router.get("/changes", responses=gone, summary="Definitions of an MCP server's tools that wait to be accepted")
    async def get_changes(server: Annotated[str, Query(max_length=200)]) -> Response:
        return _response(await run_in_thread(lambda: _encoded(views.changes(server))))

    @router.post("/changes", status_code=204, responses={**gone, **conflict}, summary="Accept them, as they were shown")
    async def accept_changes(body: Acceptance) -> Response:
        if (host := views.mcp) is None or digest(host.changes(body.server)) != body.digest or not host.changes(body.server):
            raise _DefinitionChangedError("These definitions have changed again, or are accepted: look at them once more.")
        try:
            host.accept(body.server, body.digest)
        except ConfigurationError as error:
            raise _DefinitionChangedError(str(error)) from None
        return Response(status_code=204)

    return router


def _response(content: bytes) -> Response:
    return Response(content, headers=_NO_STORE, media_type="application/json")


def _encoded(view: Json) -> bytes:
    """Encode a view without secrets."""
    return Redactor()(json.dumps(view, default=str).encode())  # ASCII: texts may have lone surrogates


def _kind(registration: Registration) -> str:
    prefix = registration.source.partition(":")[0]
    if prefix in ("mcp", "plugin"):
        return prefix
    return "callback" if registration.is_remote else "function"


def _tools_of(body: bytes | None) -> list[msgspec.Raw]:
    """Return the elements of a request's ``tools``; none for anything that is not a list of objects."""
    try:
        tools = msgspec.json.decode(body, type=_ToolsOf).tools if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [raw for raw in tools or () if bytes(raw).startswith(b"{")]


def _function(element: Mapping[str, Any]) -> Mapping[str, Any]:
    function = element.get("function")
    return function if isinstance(function, dict) else element


def _name(element: Mapping[str, Any]) -> str:
    return str(_function(element).get("name") or element.get("type") or "?")


def _text(definition: Any) -> str:
    """Return a definition as JSON in which a number differs from another one that is written otherwise."""
    return json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False)
