"""The lock of a SQLite file: one server, without blocking other users of the store."""

from __future__ import annotations

import pytest

from patchbay.errors import ConfigurationError
from patchbay.registrations import RegistrationStore
from patchbay.server import registrations
from patchbay.server.registrations import FileLock

from .registering import registry_of, remote


async def test_lock_has_one_holder_until_released(tmp_path, monkeypatch):
    monkeypatch.setattr(registrations, "ACQUIRE_TIMEOUT", 0.0)
    url = f"sqlite:///{tmp_path}/tools.db"
    async with RegistrationStore(url) as store, RegistrationStore(url) as other:
        first, second = FileLock(store.database), FileLock(other.database)
        await first.acquire()
        with pytest.raises(ConfigurationError, match=r"in use by another server.*PostgreSQL"):
            await second.acquire()
        registry = registry_of()
        await other.save(registry, registry.register(remote("t")))  # a store is no server
        first.release()
        await second.acquire()
        second.release()
        assert ["t"] == [each.name for each in await store.load()]


async def test_in_memory_databases_do_not_share_a_lock():
    async with RegistrationStore("sqlite://") as store, RegistrationStore("sqlite://") as other:
        for each in (store, other):
            await FileLock(each.database).acquire()
