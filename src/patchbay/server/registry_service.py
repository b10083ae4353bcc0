"""Changes and queries of the registry: registry, sessions and store, and responses in the shapes that N.E.K.O's clients know."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from patchbay.errors import ConfigurationError, HiddenToolError, ToolArgumentsError, UnknownToolError
from patchbay.executor import Executor, ToolExecution
from patchbay.executor.results import error_for_model
from patchbay.executor.run import find_tool
from patchbay.hooks import HookScope
from patchbay.media.files import MediaError
from patchbay.media.store import SCHEME, MediaMeta, MediaStore
from patchbay.registrations import json_default
from patchbay.server.auth import MEDIA_PATH
from patchbay.server.callbacks import CallbackEndpoint, CallbackHealth, read_callback_url
from patchbay.server.governance import Governance
from patchbay.server.registrations import RegistrationWriter
from patchbay.server.registry_models import CallBody, ClearBody, RegisterBody, UnregisterBody
from patchbay.server.request_log import CURRENT_REQUEST
from patchbay.tools import AgentScope, Tool, well_formed
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.output import ToolOutput, attachments_of
from patchbay.tools.registry import Change, Failure, Key, Registration, ToolRegistry
from patchbay.tools.threads import run_in_thread
from patchbay.types import Illustrated, ToolCall

Body = dict[str, Any]

_METADATA = ("annotations", "title", "output_schema")


class RegistryService:
    """Carries out requests. ``managers`` are the roles' live sessions; ``writer`` is None without a store.

    ``instance_id`` changes with each start, so that clients detect a restart; servers that share a store have one.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        managers: Mapping[str, LLMSessionManager],
        health: CallbackHealth,
        writer: RegistrationWriter | None,
        governance: Governance,
        *,
        sync_timeout: float,
    ) -> None:
        self.registry = registry
        self._own_id = uuid.uuid4().hex
        self._managers = managers
        self._health = health
        self._writer = writer
        self._governance = governance
        self._sync_timeout = sync_timeout

    @property
    def instance_id(self) -> str:
        """The id of the registry."""
        return (self._writer.shared_id if self._writer is not None else "") or self._own_id

    @property
    def revision(self) -> int:
        """The number of the registry's last change."""
        return self._writer.revision if self._writer is not None and self._writer.shared_id else self.registry.revision

    async def register(self, body: RegisterBody, *, trusted: bool, is_local: bool = False) -> Body:
        """Register a tool, with ``is_local`` for this server alone, not stored.

        Raises UnknownRoleError; ConfigurationError for a tool that cannot be made.
        """
        registration = Registration(
            name=body.name,
            description=body.description,
            parameters=body.parameters,
            source=body.source,
            role=body.role,
            timeout_seconds=body.timeout_seconds,
            callback_url=body.callback_url,
            metadata={name: value for name in _METADATA if (value := getattr(body, name))},
            secret=body.secret or self._secret(body, trusted=trusted),
            instance=body.instance or "",
            machine=self.registry.machine if read_callback_url(body.callback_url, None).is_here else "",
            is_local=is_local,
        )
        change = self.registry.register(registration, trusted=trusted, secret=body.secret)
        if change.ok and registration.origin is not None:
            self._health.renewed(CallbackEndpoint(registration.source, registration.origin))
        affected, failed, stored = await self._apply(change, body.name)
        answer = self._answer(
            ok=bool(affected),
            registered=body.name,
            affected_roles=affected,
            failed_roles=failed,
            pending_roles=self._pending_roles(),
            **stored,
        )
        if change.ok:
            answer["secret"] = registration.secret
            if problem := self.registry.problem(registration.key):
                answer["warnings"] = [f"this tool is not offered to models: {problem}"]
        if not affected and not any(failure["code"] == "source_conflict" for failure in failed):
            answer["error"] = "no role accepted the registration"
        return answer

    async def unregister(self, body: UnregisterBody, *, trusted: bool) -> Body:
        """Remove a tool. Raises UnknownRoleError."""
        remove = partial(
            self.registry.unregister,
            body.name,
            body.role,
            expected_source=body.expected_source,
            instance=body.instance,
            trusted=trusted,
            secret=body.secret,
        )
        change = remove()
        if not change.removed and await self._read_others():
            change = remove()
        return {**await self._removal(change), "removed": change.removed > 0, "name": body.name}

    async def clear(self, body: ClearBody, *, trusted: bool) -> Body:
        """Remove all tools of a source. Raises UnknownRoleError."""
        await self._read_others()
        change = self.registry.clear(body.source, body.role, instance=body.instance, trusted=trusted, secret=body.secret)
        return {**await self._removal(change), "removed": change.removed, "source": body.source}

    async def _read_others(self) -> bool:
        """Read what other servers have just stored, where a store is shared: a client may have been told by one of them."""
        if self._writer is None or not self._writer.shared_id:
            return False
        await self._writer.saved()
        return True

    def etag(self, role: str | None, *, trusted: bool = False) -> str:
        """Return the tag of a listing, which changes with every change and every start.

        With a store that servers share it is equal on all of them, but where one hides what it cannot reach.
        """
        about = f"{_digest(role) if role else 'all'}{'.trusted' if trusted else ''}"
        if self._writer is not None and self._writer.shared_id:
            about += f".{_digest(*(f'{name} {each.etag}' for name, each in self.registry.snapshots(role).items()))}"
        behind = self._pending_roles()
        return f"{self.instance_id}.{self.revision}.{about}{f'.{_digest(*behind)}' if behind else ''}"

    def listing(self, role: str | None, *, trusted: bool = False) -> bytes:
        """Return the tools of a role, or of all roles, as JSON. Raises UnknownRoleError.

        Only trusted callers see the queries of callback URLs, which may hold keys.
        """
        etag = self.etag(role, trusted=trusted)  # before the tools: newer ones under an older tag are only sent once more
        answer = self._answer(ok=True)
        snapshots = self.registry.snapshots(role)
        return msgspec.json.encode(
            {
                **answer,
                "tools_by_role": {
                    name: [dict(tool) if trusted else _without_query(tool) for tool in each.listing]
                    for name, each in snapshots.items()
                },
                "pending_roles": self._pending_roles(),
                "etag": etag,
                "etags_by_role": {name: each.etag for name, each in snapshots.items()},
            },
            enc_hook=json_default,
        )

    async def call(self, body: CallBody, *, session: str = "") -> Body:
        """Run one call; ``session`` is its session key. Raises UnknownRoleError."""
        role = body.role or next(iter(self.registry.roles), "")
        snapshot = self.registry.snapshot(role)
        raw = body.raw_arguments if body.raw_arguments is not None else _encode_arguments(body.arguments)
        call = ToolCall(body.call_id or f"call_{secrets.token_hex(8)}", body.name, raw)
        try:
            tool = find_tool(snapshot.tools, body.name)
        except UnknownToolError as unknown:
            error = HiddenToolError(body.name) if body.name in snapshot.hidden else unknown
            message, code = error_for_model(body.name, error)
            return self._called(role, call, message, error=str(error), code=code, ran="no")
        execution = await self._run(role, tool, call, body, session)
        content, seconds = execution.content, execution.seconds
        if execution.error is None:
            files = await run_in_thread(lambda: _stored_files(self._governance.media, execution))
            return {**self._called(role, call, content, output=execution.value, seconds=seconds), **files}
        failure = {"error": _reason(execution.error), "code": execution.result.code, "ran": execution.ran}
        answer = self._called(role, call, content, seconds=seconds, **failure)
        if isinstance(execution.error, ToolArgumentsError):
            answer["details"] = list(execution.error.details)
        return answer

    async def _run(self, role: str, tool: Tool, call: ToolCall, body: CallBody, session: str) -> ToolExecution:
        """Run a call with all hooks, as a separate turn."""
        executor = Executor([tool], max_result_chars=None, hooks=self._governance.hooks, media=self._governance.media)
        context = {"inbound": {"channel": "api"}, "scope": {"role": role}}
        scope = HookScope(role, CURRENT_REQUEST.get() or f"call-{secrets.token_hex(6)}", session_key=session, context=context)
        around = AgentScope(idempotency_key=body.idempotency_key or "")
        batch = executor.begin_run(agent_scope=around, scope=scope).start_batch([call])
        try:
            return await anext(batch)
        finally:
            await batch.stop()

    async def _removal(self, change: Change) -> Body:
        affected, failed, stored = await self._apply(change)
        return self._answer(
            ok=not failed or change.removed > 0,
            affected_roles=affected,
            failed_roles=failed,
            refused_roles=[{"role": refusal.role, "owned_by": refusal.owned_by} for refusal in change.refused_roles],
            pending_roles=self._pending_roles(),
            **stored,
        )

    async def _apply(self, change: Change, name: str = "") -> tuple[list[str], list[Body], Body]:
        """Store a change and sync the sessions; return the affected roles, the failures, and whether it is stored.

        A failed sync does not undo the change: the session's next turn has it.
        """
        failed = [self._failed(each, name) for each in change.failed_roles]
        if not change.affected_roles and not change.keys:
            return [], failed, self._stored(self.store_problem)
        names = {name} if name else {key.name for key in change.keys}  # an equal registration has no keys
        problem, errors = await asyncio.gather(self._save(names), self._sync(change.affected_roles))
        failed += [{"role": role, "error": error, "code": "sync_failed"} for role, error in errors.items()]
        return list(change.affected_roles), failed, self._stored(problem)

    def _failed(self, failure: Failure, name: str) -> Body:
        """Describe a role for which the tool ``name`` could not be registered."""
        body = {"role": failure.role, "error": failure.error, "code": failure.code}
        if failure.code != "source_conflict":
            return body
        registry, role = self.registry, failure.role
        owner = registry.snapshot(role).registrations.get(name) if role in registry.roles else None
        owner = owner or registry.get(Key(None, name)) or registry.get(Key(role, name))
        return {**body, "owned_by": owner.source if owner is not None else None}

    @property
    def store_problem(self) -> str | None:
        """Why nothing can be stored at the moment; None where it can, and without a store."""
        return self._writer.problem if self._writer is not None else None

    def _save(self, names: Iterable[str]) -> Awaitable[str | None]:
        return self._writer.saving(names) if self._writer is not None else asyncio.sleep(0)

    def _stored(self, problem: str | None) -> Body:
        """Return the fields about the store."""
        return {"stored": self._writer is not None} if problem is None else {"stored": False, "not_stored": problem}

    async def _sync(self, roles: Iterable[str]) -> dict[str, str]:
        """Sync the sessions of these roles concurrently; return the errors by role."""

        async def sync(manager: LLMSessionManager) -> str | None:
            try:
                async with asyncio.timeout(self._sync_timeout):
                    await manager.sync()
            except TimeoutError:
                return f"RuntimeError: tool sync failed: not done within {self._sync_timeout:g} s"
            except Exception as error:  # noqa: BLE001  (a session may raise anything; it is reported to the caller)
                return f"RuntimeError: {error}"
            return None

        managers = {role: self._managers[role] for role in roles if role in self._managers}
        errors = await asyncio.gather(*map(sync, managers.values()))
        return {role: error for role, error in zip(managers, errors, strict=True) if error is not None}

    def _pending_roles(self) -> list[str]:
        """Return the roles whose live session has not confirmed the last change; it is retried."""
        return [role for role, manager in self._managers.items() if manager.out_of_sync]

    def _secret(self, body: RegisterBody, *, trusted: bool) -> str:
        """Return a new secret; for a trusted caller the current one, so that an equal registration changes nothing."""
        known = self.registry.get(Key(body.role or None, body.name, body.instance or "")) if trusted else None
        if known is not None and known.secret is not None and known.source == body.source:
            return known.secret
        return secrets.token_urlsafe(24)

    def _answer(self, *, ok: bool, **rest: Any) -> Body:
        return {"ok": ok, **rest, "instance_id": self.instance_id, "revision": self.revision}

    def _called(
        self, role: str, call: ToolCall, content: str, *, output: Any = None, seconds: float = 0.0, **failure: str | None
    ) -> Body:
        """Return the response to a call; ``failure`` are its error, code, and whether it ran."""
        answer = self._answer(ok=not failure, name=call.name, role=role, call_id=call.id, is_error=bool(failure))
        answer |= {"output": _json_output(output, content), "content": content, "seconds": round(seconds, 6)}
        return {**answer, **failure}


def _without_query(tool: Mapping[str, Any]) -> Body:
    url: str | None = tool["callback_url"]
    shown = {**tool, "callback_url": url and url.partition("?")[0]}
    if "instances" in tool:
        shown["instances"] = [_without_query(each) for each in tool["instances"]]
    return shown


def _digest(*texts: str) -> str:
    joined = "\n".join(texts).encode("utf-8", "replace").hex()
    return uuid.uuid5(uuid.NAMESPACE_OID, joined).hex[:8]


def _encode_arguments(arguments: Body) -> str:
    try:
        return msgspec.json.encode(arguments).decode()
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the arguments cannot be written as JSON: {error}.") from None


def _json_output(output: Any, content: str) -> Any:
    """Return an output as JSON, or its text for the model where it is not serializable."""
    if isinstance(output, Illustrated):
        output = output.output
    elif isinstance(output, ToolOutput):  # a hook's answer
        output = output.for_llm
    try:
        return msgspec.Raw(msgspec.json.encode(output))
    except (TypeError, ValueError, RecursionError):
        return content


def _stored_files(media: MediaStore, execution: ToolExecution) -> Body:
    """Return the field ``files``: where the images and files of a result are served. Without any it is left out.

    One that the store does not take is left out: the result's text names it.
    """
    output, files = execution.output, []
    refs = list(output.media) if output is not None else []
    for each in attachments_of(execution.value):
        meta = MediaMeta(each.name or "", each.media_type, execution.call.name)
        with contextlib.suppress(MediaError):
            refs.append(media.put(bytes(each.data), meta, execution.call.id))
    for ref in refs:
        with contextlib.suppress(MediaError):
            found = media.lookup(ref)
            files.append(
                {
                    "url": f"{MEDIA_PATH}{found.ref.removeprefix(SCHEME)}",
                    "media_type": found.media_type,
                    "name": well_formed(found.filename),
                }
            )
    return {"files": files} if files else {}


def _reason(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  (a tool's exception may fail to describe itself)
        return type(error).__name__
