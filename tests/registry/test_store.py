"""Registrations survive restarts, kill -9 at any moment, two processes, and database errors."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from patchbay.errors import ConfigurationError
from patchbay.registrations import RegistrationStore
from patchbay.tools import ToolDefinition
from patchbay.tools.registry import Registration, ToolRegistry
from support.processes import Process
from support.running import run

from .registering import registry_of, remote
from .writer import ROLES, step

WRITER = Path(__file__).with_name("writer.py")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ROUNDS = int(os.environ.get("PATCHBAY_STORE_ROUNDS", "50"))
"""Kills of a writer; ``PATCHBAY_STORE_ROUNDS=200`` takes a minute."""


async def stored(url: str) -> list[Registration]:
    async with RegistrationStore(url) as store:
        return await store.load()


async def store_changes(url: str, registry: ToolRegistry, *changes) -> None:
    async with RegistrationStore(url) as store:
        await store.save(registry, *changes)


def spawn(url: str, *command: object) -> Process:
    return Process(
        [sys.executable, str(WRITER), url, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def end(child: Process) -> None:
    child.kill()
    child.communicate(timeout=30)


def everything(registrations: list[Registration]) -> list[tuple[object, ...]]:
    return [(each, each.place) for each in registrations]  # equal registrations may have different places


def test_registration_survives_a_restart_completely(url):
    whole = remote(
        "t", "plugin:x", "ann", description="d", parameters=SCHEMA, timeout_seconds=7.5, metadata={"a": [1]}, secret="hush"
    )
    registry = registry_of()
    changes = [registry.register(each, trusted=True) for each in (whole, remote("u"), remote("u", role="ben", description="own"))]
    run(store_changes(url, registry, *changes))
    found = run(stored(url))
    assert everything(registry.registrations()) == everything(found)
    assert (whole, frozenset({"ben"})) == (found[0], found[1].excluded)
    again = ToolRegistry(["ann", "ben"])
    again.restore(found)
    assert [registry.snapshot(role).etag for role in again.roles] == [again.snapshot(role).etag for role in again.roles]


def test_removal_survives_a_restart(url):
    async def work():
        registry = registry_of(roles=("ann",))
        async with RegistrationStore(url) as store:
            for name in ("a", "b", "c"):
                await store.save(registry, registry.register(remote(name)))
            await store.save(registry, registry.unregister("b"))
            await store.save(registry, registry.unregister("c", "ann"))
        return registry.registrations()

    assert everything(run(work())) == everything(found := run(stored(url)))
    assert [("a", frozenset()), ("c", frozenset({"ann"}))] == [(each.name, each.excluded) for each in found]


def test_in_process_tools_are_not_stored_and_neither_are_those_they_replace(url, caplog):
    registry = registry_of()
    local = Registration.of(ToolDefinition("t", handler=dict))
    run(store_changes(url, registry, registry.register(remote("t")), registry.register(remote("u"))))
    run(store_changes(url, registry, registry.register(local, inside=True)))
    assert (["u"], "") == ([each.name for each in run(stored(url))], caplog.text)


def test_any_json_text_is_stored(url):
    registry = registry_of()
    odd = "\ud800 \x00 '\"\\ 猫"
    change = registry.register(remote(odd, odd, description=odd, parameters={odd: [odd, 1e300, 2**70]}))
    run(store_changes(url, registry, change))
    assert registry.registrations() == run(stored(url))
    run(store_changes(url, registry, registry.unregister(odd)))
    assert [] == run(stored(url))


def test_a_tool_that_cannot_be_written_spares_the_others(url, caplog):
    deep: dict = {}
    for _ in range(100_000):
        deep = {"properties": deep}
    registry = registry_of(roles=("ann",))
    changes = [registry.register(remote("deep", metadata=deep)), registry.register(remote("fine"))]
    run(store_changes(url, registry, *changes))
    assert (["fine"], True) == ([each.name for each in run(stored(url))], "deep" in caplog.text)


def test_a_row_that_cannot_be_read_spares_the_others(tmp_path, caplog):
    file = tmp_path / "tools.db"
    registry = registry_of()
    run(store_changes(str(file), registry, *[registry.register(remote(name)) for name in "abcd"]))
    engine = sa.create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        for name, body in (("a", "{"), ("b", "[]"), ("c", '{"name": "c", "excluded": []}')):
            connection.exec_driver_sql(f"UPDATE patchbay_registrations SET body = '{body}' WHERE name = '\"{name}\"'")
    engine.dispose()
    assert (["d"], 3) == ([each.name for each in run(stored(str(file)))], len(caplog.records))


async def test_the_file_is_for_its_owner_only(tmp_path):
    file = tmp_path / "tools.db"

    registry = registry_of()
    async with RegistrationStore(f"sqlite:///{file}") as store:
        await store.save(registry, registry.register(remote("t", secret="hush")))
        modes = {each.name: stat.filemode(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert {"tools.db", "tools.db-wal"} <= modes.keys()
    assert {"-rw-------"} == {*modes.values()}


def test_unopenable_database_is_a_configuration_error(tmp_path):
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"no database at all\n" * 100)
    for url in (f"sqlite:///{tmp_path / 'nowhere' / 'tools.db'}", str(tmp_path), str(junk)):
        with pytest.raises(ConfigurationError, match="cannot be opened"):
            run(stored(url))
    with pytest.raises(ConfigurationError):
        RegistrationStore("mysql://host/name")


def test_failed_save_is_repeated_with_the_next_change(tmp_path):
    folder = tmp_path / "later"
    registry = registry_of()

    async def work():
        async with RegistrationStore(folder / "tools.db") as store:
            with pytest.raises(ConfigurationError):
                await store.save(registry, registry.register(remote("a")))
            folder.mkdir()
            await store.save(registry, registry.register(remote("b")))

    run(work())
    assert "-rw-------" == stat.filemode((folder / "tools.db").stat().st_mode)
    assert ["a", "b"] == [each.name for each in run(stored(str(folder / "tools.db")))]


def test_reordered_saves_give_the_same_state(url):
    registry = registry_of()
    changes = [
        registry.register(remote("a")),
        registry.unregister("a"),
        registry.register(remote("b")),
        registry.register(remote("b", description="newer")),
    ]

    async def work():
        async with RegistrationStore(url) as store:
            await asyncio.gather(*(store.save(registry, change) for change in reversed(changes)))

    run(work())
    assert [("b", "newer")] == [(each.name, each.description) for each in run(stored(url))]


def test_concurrent_changes_are_all_stored(url):
    async def work():
        registry = registry_of()
        async with RegistrationStore(url) as store:

            async def one(number: int) -> None:
                name = f"t{number}"
                await store.save(registry, registry.register(remote(name)))
                if number % 2:
                    await store.save(registry, registry.unregister(name))

            await asyncio.gather(*map(one, range(20)))
        return registry.registrations()

    assert everything(run(work())) == everything(found := run(stored(url)))
    assert {f"t{number}" for number in range(0, 20, 2)} == {each.name for each in found}


def test_a_change_that_changed_nothing_writes_nothing(tmp_path):
    file = tmp_path / "tools.db"
    registry = registry_of(remote("t"))
    run(store_changes(str(file), registry, registry.register(remote("t"))))
    assert not file.exists()


class Steps:
    """What the registry is after each step, made when it is asked for."""

    def __init__(self) -> None:
        self.registry = ToolRegistry(ROLES)
        self.states: list[list[Registration]] = [[]]

    def after(self, number: int) -> list[Registration]:
        while len(self.states) <= number:
            step(self.registry, len(self.states))
            self.states.append(self.registry.registrations())
        return self.states[number]


def rounds_of_killing(url: str, rounds: int, seed: int) -> tuple[int, int]:
    """Kill a writer so often, and take up each time what it left. Returns the last step, and how often one was kept unsaid."""
    chance, steps, done, unsaid = random.Random(seed), Steps(), 0, 0
    child = spawn(url, "zygote")
    try:
        for _ in range(rounds):
            child.stdin.write(f"{done + 1} {chance.randint(0, 4)} {chance.randint(0, 60_000)}\n")
            child.stdin.flush()
            text = int(child.stdout.readline())
            found = run(stored(url))
            # Every change that was acknowledged; of the one under way all or nothing.
            assert found in (steps.after(text), steps.after(text + 1))
            unsaid += found != steps.after(text)
            done = text if found == steps.after(text) else text + 1
    finally:
        end(child)
    return done, unsaid


def test_killed_writer_leaves_complete_acknowledged_changes_only(tmp_path):
    done, _ = rounds_of_killing(f"sqlite:///{tmp_path / 'tools.db'}", ROUNDS, 5)
    assert done >= ROUNDS
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'tools.db'}")
    with engine.connect() as connection:
        assert "ok" == connection.exec_driver_sql("PRAGMA integrity_check").scalar()
    engine.dispose()


def test_reordered_saves_give_the_same_state_on_postgresql(postgres_url):
    done, _ = rounds_of_killing(postgres_url, ROUNDS // 5, 6)
    assert done >= ROUNDS // 5


def test_each_step_of_the_writer_leaves_a_different_state():
    steps = Steps()
    assert all(steps.after(number) != steps.after(number + 1) for number in range(120))


def test_two_processes_on_one_database_keep_each_others_changes(url):
    children = [spawn(url, source, 1, 41) for source in ("a", "b")]
    try:
        for child in children:
            out, _ = child.communicate(timeout=60)
            assert ("41", 0) == (out.split()[-1], child.returncode)
    finally:
        for child in children:
            end(child)
    found = run(stored(url))
    for source in ("a", "b"):
        alone = ToolRegistry(ROLES)
        for number in range(1, 42):
            step(alone, number, source)
        assert {(each.role, each.name): each for each in alone.registrations()} == {
            (each.role, each.name): each for each in found if each.source == source
        }


async def test_a_new_file_that_another_process_is_making_its_tables_in_is_waited_for(tmp_path):
    """SQLite itself does not wait there: the file is not in WAL mode yet, and a reader that would change that is turned away."""
    file = tmp_path / "tools.db"
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE t (a)")

    async with RegistrationStore(file) as store:
        loading = asyncio.create_task(store.load())
        await asyncio.wait({loading}, timeout=0.3)  # long enough for it to be turned away, if it is
        other.execute("COMMIT")
        assert [] == await loading
    other.close()


async def test_save_error_does_not_contain_secrets(url):
    registry = registry_of()

    async with RegistrationStore(url) as store:
        await store.load()
        engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE patchbay_registrations RENAME COLUMN body TO other")
        engine.dispose()
        with pytest.raises(sa.exc.DBAPIError) as caught:
            await store.save(registry, registry.register(remote("t", secret="hush")))
        text = str(caught.value)
    assert (True, False) == ("body" in text, "hush" in text)


async def test_two_stores_on_one_file_keep_changes_of_another_process(tmp_path):
    """A process that closes any handle of a file gives up all its locks on it, those of SQLite's own handles too."""
    file = tmp_path / "tools.db"

    def count_elsewhere() -> str:
        reads = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM patchbay_registrations'))"
        command = [sys.executable, "-c", reads, str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    registry = registry_of()
    async with RegistrationStore(file) as first, RegistrationStore(file) as second:
        await first.save(registry, registry.register(remote("a")))
        await second.load()
        before = count_elsewhere()
        await first.save(registry, registry.register(remote("b")))
        assert ("(1,)", "(2,)") == (before, count_elsewhere())
