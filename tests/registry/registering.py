"""Helpers for the tests of this folder."""

from __future__ import annotations

from typing import Any

from patchbay.tools.registry import Registration, ToolRegistry

SECONDS = 60


def remote(name: str, source: str = "s", role: str | None = None, **fields: Any) -> Registration:
    """A tool of another process."""
    return Registration(name, source=source, role=role, **{"callback_url": "http://127.0.0.1:9/call", **fields})


def registry_of(*registrations: Registration, roles: tuple[str, ...] = ("ann", "ben"), **options: Any) -> ToolRegistry:
    registry = ToolRegistry(roles, **options)
    for each in registrations:
        assert registry.register(each, inside=True).ok
    return registry


def names(registry: ToolRegistry, role: str) -> list[str]:
    return list(registry.snapshot(role).tools)


def failures(change: Any) -> list[tuple[str, str]]:
    return [(failure.role, failure.error) for failure in change.failed_roles]
