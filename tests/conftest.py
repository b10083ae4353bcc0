"""Settings and fixtures of all tests: a scripted model with a real proxy before it, and databases."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import certifi
import pytest
import sqlalchemy as sa
import uvicorn.server
from hypothesis import settings

from agents.databases import postgres_server, why_no_postgres
from executor.virtual_time import jump_run
from patchbay.testing import ContractModel, ScriptedUpstream
from support.processes import listening
from support.route_cache import share_route_parts

collect_ignore = ["external"]  # what runs foreign programs: make clients, make sdks, make conformance

# Servers of tests must not mount the MCP servers of the developer who runs the tests.
_config_home = tempfile.TemporaryDirectory(prefix="patchbay-tests-")
os.environ["XDG_CONFIG_HOME"] = _config_home.name

# No test calls a public server, and each HTTP client loads all trusted authorities, which takes 20 ms of CPU time: one is enough.
_authority = Path(_config_home.name, "authority.pem")
_authority.write_text(
    Path(certifi.where()).read_text(encoding="utf-8").partition("\n-----END CERTIFICATE-----\n")[0]
    + "\n-----END CERTIFICATE-----\n"
)
os.environ["SSL_CERT_FILE"] = str(_authority)


class _QuickSleep:
    """``asyncio`` for uvicorn's server, with pauses shortened to a tenth."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


# The server polls ten times a second whether to exit: thousands of tests stop one in this process.
uvicorn.server.asyncio = _QuickSleep()  # type: ignore[attr-defined]

share_route_parts()

# No deadline: on a busy machine an example may take any time. Each run tries others, `pytest --hypothesis-profile nightly` many more.
# A test whose examples cost more than some 5 ms of CPU time has fewer of them (`support.repeated.examples`).
settings.register_profile("patchbay", deadline=None, max_examples=30)
settings.register_profile("nightly", deadline=None, max_examples=500)
settings.load_profile("patchbay")

# A shell without job control starts background jobs with SIGINT ignored, which child processes would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Collection creates no garbage: looking for it would take a tenth of the time.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of faults, which take up to a minute each, in two of the workers: each gets an equal part of the list."""
    long = [item for item in items if item.path.parent.name == "faults"]
    others = iter([item for item in items if item.path.parent.name != "faults"])
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    parts = [long[::2], long[1::2]] if workers > 1 else [long]
    share = max(len(items) // workers, len(long))
    items[:] = [each for part in parts for each in (*part, *itertools.islice(others, share - len(part)))]
    items += others


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, which some tests run often."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Exclude what a module's tests have imported and cached, too."""
    if nextitem is None or item.path != nextitem.path:
        _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


# Seconds that an asynchronous test may take on a busy machine.
BOUND = 90.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an ``async def`` test in its own event loop, and check that it leaves no task."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    values = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(_bounded(pyfuncitem.obj(**values)))
    return True


async def _bounded(test: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(BOUND):
        await test
    others = set[asyncio.Task[Any]]()
    for _ in range(100):  # time for async generators that the event loop closes
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
    assert set() == others


@dataclass(frozen=True)
class Proxied:
    """A running ``patchbay proxy`` (a real process) and the text-only model server behind it."""

    url: str
    upstream: ScriptedUpstream


@pytest.fixture
def proxied():
    """Start both on free ports; the model refuses ``tools``, as Ollama does."""
    with ScriptedUpstream(ContractModel(), tools="refuse") as upstream:
        command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url]
        with listening(command, name="patchbay proxy", timeout=60) as child:
            yield Proxied(child.url, upstream)


@pytest.fixture
def time_jumps(monkeypatch):
    """Replace ``asyncio.run`` by one with virtual time, which advances only when nothing is ready."""
    monkeypatch.setattr(asyncio, "run", jump_run)


_databases = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_url():
    """A PostgreSQL server for the whole run of this process, and a database on it."""
    if (reason := why_no_postgres()) is not None:
        pytest.skip(reason)
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    """A database without tables, of each kind: a SQLite file, and one on the PostgreSQL server."""
    return f"sqlite:///{tmp_path / 'kept.db'}" if request.param == "sqlite" else request.getfixturevalue("new_postgres")


@pytest.fixture
def new_postgres(postgres_url):
    """A database without tables on the PostgreSQL server."""
    server = sa.make_url(postgres_url)
    name = f"kept_{next(_databases)}"
    engine = sa.create_engine(server.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return server.set(database=name, drivername="postgresql").render_as_string()
