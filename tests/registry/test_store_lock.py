"""The lock of a store: one server per database, without blocking other users of the store."""

from __future__ import annotations

import pytest

from patchbay.errors import ConfigurationError
from patchbay.registrations import RegistrationStore
from patchbay.server import registrations
from patchbay.server.registrations import StoreLock

from .registering import registry_of, remote


async def test_store_lock_has_one_holder_until_released(url, monkeypatch):
    monkeypatch.setattr(registrations, "ACQUIRE_TIMEOUT", 0.0)

    async with RegistrationStore(url) as store, RegistrationStore(url) as other:
        first, second = StoreLock(store.database), StoreLock(other.database)
        await first.acquire()
        with pytest.raises(ConfigurationError, match="in use by another server"):
            await second.acquire()
        registry = registry_of()
        await other.save(registry, registry.register(remote("t")))  # a store is no server
        await first.release()
        await second.acquire()
        await second.release()
        assert ["t"] == [each.name for each in await store.load()]


async def test_in_memory_databases_do_not_share_a_lock():
    async with RegistrationStore("sqlite://") as store, RegistrationStore("sqlite://") as other:
        for each in (store, other):
            await StoreLock(each.database).acquire()
