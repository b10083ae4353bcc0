"""``patchbay worker``: carries out the durable runs of agents, beside any number of other workers and servers."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from patchbay.cli.options import Audit, AuditDays, Config, Json
from patchbay.cli.terminal import styles

if TYPE_CHECKING:
    from patchbay.agents import BaseAgent
    from patchbay.agents.durable import DurableRuns
    from patchbay.server.governance import Governance

_RUNS = "Durable runs"

Concurrency = Annotated[
    int,
    typer.Option(
        "--run-concurrency",
        min=1,
        metavar="COUNT",
        envvar="PATCHBAY_RUN_CONCURRENCY",
        rich_help_panel=_RUNS,
        help="Runs of an agent that each process carries out at a time; the process started last sets it for all.",
    ),
]
Rate = Annotated[
    int | None,
    typer.Option(
        "--run-rate",
        min=1,
        metavar="COUNT",
        envvar="PATCHBAY_RUN_RATE",
        rich_help_panel=_RUNS,
        help="Runs of an agent that begin in a minute at most, in all processes; default: no limit.",
    ),
]
RunDays = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="DAYS",
        envvar="PATCHBAY_RUN_DAYS",
        rich_help_panel=_RUNS,
        help="Days after their end for which the records of runs are kept; 0: for good.",
    ),
]


def worker(
    agents: Annotated[
        list[str], typer.Argument(metavar="MODULE:AGENT", help="Agents whose runs to carry out; MODULE may be a FILE.py.")
    ],
    database: Annotated[
        str,
        typer.Option(metavar="URL", envvar="PATCHBAY_DURABLE", help="Database of the runs, as of patchbay serve --durable."),
    ] = "sqlite:///patchbay-runs.db",
    concurrency: Concurrency = 10,
    rate: Rate = None,
    run_days: RunDays = 90.0,
    drain: Annotated[
        float,
        typer.Option("--drain-timeout", min=0, metavar="SECONDS", help="Time for the steps under way when it is stopped."),
    ] = 30.0,
    config: Config = None,
    audit: Audit = None,
    audit_days: AuditDays = 90.0,
    as_json: Json = False,
) -> None:
    """Carry out durable runs of agents, until Ctrl-C.

    Any number of workers and servers may use one database. One that is stopped ends the steps under way, and others go on with
    its runs; so they do, after ten seconds, with those of one that was killed. Give all of them the same --config: each calls its
    own hooks.

    [bold]Examples[/bold]

      patchbay worker forecaster.py:agent

      patchbay worker shop.agents:clerk shop.agents:buyer --database postgresql://shop@db/runs

      patchbay worker forecaster.py:agent --run-concurrency 4 --run-rate 60 --json
    """  # fmt: skip
    from patchbay.agents.durable import DurableRuns
    from patchbay.cli.serving import load_agent, make_governance
    from patchbay.database import prepare_databases

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    loaded = [load_agent(target, "MODULE:AGENT") for target in agents]
    runs = DurableRuns(database, concurrency=concurrency, per_minute=rate, drain_timeout=drain, keep_days=run_days)
    governance = make_governance(config, audit, audit_days, store=database)
    prepare_databases()
    asyncio.run(_work(runs, loaded, governance, as_json=as_json))


async def _work(runs: DurableRuns, agents: list[BaseAgent], governance: Governance, *, as_json: bool) -> None:
    from patchbay.server.runs_api import add_durable_agents

    bold, dim, plain = styles(sys.stdout)

    def tell(event: str, **about: str) -> None:
        words = f"  {dim}{event}{plain} {' '.join(about.values())}"
        print(json.dumps({"event": event, **about}) if as_json else words, flush=True)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(governance.aclose)
        await governance.open()
        for runner in add_durable_agents(runs, agents, governance):
            opened.push_async_callback(runner.aclose)
        runs.on_change = lambda run_id, change: tell(change, id=run_id)
        await runs.start()
        if not as_json:
            print(f"patchbay worker {bold}{', '.join(runs.agents)}{plain}")
        tell("database", url=runs.display_url, worker=runs.address)
        await stop.wait()
        for number in (signal.SIGINT, signal.SIGTERM):  # the second one does not wait
            loop.add_signal_handler(number, runs.stop_now)
        await runs.aclose()
    tell("stopped", worker=runs.address)
