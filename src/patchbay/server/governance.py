"""Governance of a server's models and tools: hooks, approvals, audit, events, and files for the user."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import FastAPI

from patchbay._trace import exporter
from patchbay.approvals import ApprovalPolicy, ApprovalService, parse_policy
from patchbay.audit import AuditLog
from patchbay.errors import ConfigurationError
from patchbay.hooks import HookManager
from patchbay.hooks.config import BuiltinFactory, ConfiguredHooks, HooksConfig, mount_configured, read_server_config
from patchbay.hooks.process.client import ProcessHook
from patchbay.media import MediaStore, SharedMediaStore
from patchbay.server.admin_api import MediaApp, make_approvals_router, make_audit_router, make_events_router
from patchbay.server.auth import MEDIA_PATH
from patchbay.server.event_stream import EventStream

_MODEL_METHODS: Final = frozenset({"before_llm", "after_llm"})

AUDIT_KEPT = 90 * 24 * 3600.0
"""Seconds after which an entry of the audit is deleted."""


@dataclass(frozen=True)
class GovernanceSettings:
    """Configuration and stores of a Governance.

    ``config`` is a file with ``hooks`` and ``approvals`` (JSON, YAML or TOML). ``approvals`` and ``audit`` are database URLs:
    without the first, requests for approval end with the process; without the second there is no audit. Entries of the audit are
    kept for ``audit_kept`` seconds, None forever. ``media_folder`` is shared with other servers, which serve each other's files.
    """

    config: Path | None = None
    approvals: str | None = None
    audit: str | None = None
    audit_kept: float | None = AUDIT_KEPT
    media_folder: Path | None = None


class Governance:
    """The hooks of a server's turns with their services. ``hooks`` may have hooks of the program mounted already.

    ``builtins`` are the factories for the file's ``hooks.builtins``. The file is read here, so that errors in it are raised
    before anything runs. Raises ConfigurationError.
    """

    def __init__(
        self,
        settings: GovernanceSettings | None = None,
        *,
        hooks: HookManager | None = None,
        builtins: Mapping[str, BuiltinFactory] | None = None,
    ) -> None:
        self.settings = settings = settings if settings is not None else GovernanceSettings()
        self.hooks = hooks if hooks is not None else HookManager()
        self.media = MediaStore() if settings.media_folder is None else SharedMediaStore(settings.media_folder)
        self.events = EventStream(self.hooks)
        config, policy = self._read()
        self.approvals = ApprovalService(policy, settings.approvals)
        self.audit = AuditLog(settings.audit, keep=settings.audit_kept) if settings.audit is not None else None
        self._config = config
        self._builtins = builtins
        self._configured: ConfiguredHooks | None = None
        self._opening = asyncio.Lock()
        self._is_open = False

    @property
    def checks_models(self) -> bool:
        """Whether a hook checks requests to models or their answers. Hook processes with tools are mounted for it, too."""
        for mounted in self.hooks.mounted:
            if isinstance(mounted.hook, ProcessHook):
                if "llm" in mounted.hook.spec.modes:
                    return True
            elif not _MODEL_METHODS.isdisjoint(mounted.methods):
                return True
        return False

    def add_routes(self, api: FastAPI, *, needs_token: bool) -> None:
        """Add the admin API. ``needs_token``: the server has a token."""
        api.include_router(make_approvals_router(self.approvals, needs_token=needs_token))
        api.include_router(make_events_router(self.events, needs_token=needs_token))
        if self.audit is not None:
            api.include_router(make_audit_router(self.audit, needs_token=needs_token))
        api.mount(MEDIA_PATH.rstrip("/"), MediaApp(self.media, needs_token=needs_token))

    async def open(self) -> None:
        """Start what is configured, once. No call may run before.

        Raises ConfigurationError where a required hook does not start.
        """
        if self._is_open:
            return
        async with self._opening:
            if not self._is_open:
                await self._start()
                self._is_open = True

    async def reload(self) -> str:
        """Read the file again and apply it; return a summary.

        Raises ConfigurationError, and changes nothing then. Running turns end as they began.
        """
        config, policy = self._read()
        if config is None or self._configured is None:
            raise ConfigurationError("there is no configuration to be read again: this server was started without --config.")
        policy.apply_to(config.policy)  # raises before anything is changed
        before = self._in_force
        await self._configured.reload(config)
        self._config, self.approvals.policy = config, policy
        self._mount_approvals()
        now = self._in_force
        gone = [each for each in before if each not in now]
        return f"{self.summary}; no more: {', '.join(gone)}" if gone else self.summary

    @property
    def summary(self) -> str:
        """The mounted, skipped and disabled hooks, and the rules of approvals."""
        outcomes = self._configured.outcomes if self._configured is not None else ()
        words = [each.name if not each.problem else f"{each.name} is left out: {each.problem}" for each in outcomes]
        if (config := self._config) is not None and config.enabled:
            words += [f"{name} is not enabled" for name in config.disabled]
        elif config is not None:
            words.append("hooks.enabled is false")
        policy = self.approvals.policy
        rules, default = len(policy.rules), policy.otherwise.outcome
        otherwise = f"default {default}" if default != "allow" else ""
        if rules:
            words.append(f"approvals by {rules} rule{'' if rules == 1 else 's'}{f', {otherwise}' if otherwise else ''}")
        elif otherwise:
            words.append(f"approvals: {otherwise}")
        return "; ".join(words) or "nothing"

    @property
    def _in_force(self) -> list[str]:
        """The names of the hooks and services in force, which a reload could remove."""
        outcomes = self._configured.outcomes if self._configured is not None else ()
        policy = self.approvals.policy
        asks = bool(policy.rules) or policy.otherwise.outcome != "allow"
        return [*(each.name for each in outcomes if not each.problem), *(["approvals"] if asks else [])]

    def stop(self) -> None:
        """Prepare for shutdown: streams end, and pending approvals stay for the next start."""
        self.events.leave()
        self.approvals.leave()

    async def aclose(self) -> None:
        """Close the hooks, then store what they and the calls recorded."""
        self.stop()
        try:
            await self.hooks.aclose()
            await self.approvals.aclose()
        finally:
            if self.audit is not None:
                await self.audit.aclose()
            self.media.close()

    def _read(self) -> tuple[HooksConfig | None, ApprovalPolicy]:
        path = self.settings.config
        if path is None:
            return None, ApprovalPolicy()
        config, policy = read_server_config(path)
        try:
            return config, parse_policy(policy)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from None

    async def _start(self) -> None:
        if self._config is not None:
            folder = self.media.media_dir
            self._configured = await mount_configured(self.hooks, self._config, builtins=self._builtins, media_dir=folder)
        self._mount_approvals()
        if self.audit is not None:
            self.hooks.recorders.append(self.audit)
        if (spans := exporter()) is not None:
            self.hooks.recorders.append(spans.add_call)

    def _mount_approvals(self) -> None:
        # Without a policy calls need no approval. A service that was mounted before stays mounted.
        if self.approvals.policy != ApprovalPolicy() or any(each.hook is self.approvals for each in self.hooks.mounted):
            self.approvals.mount(self.hooks)
        else:
            self.approvals.stand_by(self.hooks)
