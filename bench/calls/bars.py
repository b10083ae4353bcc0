"""The bars for the figures of calls."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.bars import Verdict
from bench.calls.measure import MANY, ONE_BY_ONE, TOGETHER, Outcome
from bench.calls.plugin_folder import KINDS
from bench.calls.rows import CALLBACK, MCP_MOUNTED, MCP_STDIO, PLUGIN, SAME_PROCESS

PLUGIN_MILLISECONDS = 0.2
"""CPU time of a plugin's call at most, over that of a call in the same process."""

CALLBACK_MILLISECONDS = 0.6
MANY_SECONDS = 5.0
MCP_RATIO = 1.15


def of_calls(outcome: Outcome) -> Iterator[Verdict]:
    """The bars of calls: each holds for calls one after the other and for 16 at once, the CPU of all processes together."""
    plugin, same, callback = (outcome.figures.get(name) for name in (PLUGIN, SAME_PROCESS, CALLBACK))
    what, bar = "Call of a plugin, over one in the same process: CPU", f"≤ {PLUGIN_MILLISECONDS} ms"
    if plugin is None or same is None:
        yield Verdict(what, bar, f"no figures of {PLUGIN if plugin is None else SAME_PROCESS}", None)
    else:
        yield _held(what, bar, *((plugin.cpu(way) - same.cpu(way)) / 1e3 for way in (ONE_BY_ONE, TOGETHER)), PLUGIN_MILLISECONDS)
    what, bar = "Call by an HTTP callback, its process included: CPU", f"≤ {CALLBACK_MILLISECONDS} ms"
    if callback is None:
        yield Verdict(what, bar, f"no figures of {CALLBACK}", None)
    else:
        yield _held(what, bar, *(callback.cpu(way) / 1e3 for way in (ONE_BY_ONE, TOGETHER)), CALLBACK_MILLISECONDS)
    yield _of_mcp(outcome)
    for kind in KINDS:
        what, bar = f"{MANY}, {kind}, from the start of their host until all can be called", f"< {MANY_SECONDS:.0f} s"
        if not (found := outcome.many.get(kind)):
            yield Verdict(what, bar, "not measured", None)
        else:
            seconds = statistics.median(each.first for each in found)
            yield Verdict(what, bar, f"{seconds:.1f} s", seconds < MANY_SECONDS)


def _of_mcp(outcome: Outcome) -> Verdict:
    """What mounting an MCP server costs: its calls one after the other, beside the SDK's own client, both with the same server."""
    mounted, alone = (outcome.figures.get(name) for name in (MCP_MOUNTED, MCP_STDIO))
    what, bar = "Call of a mounted MCP server over stdio, beside the SDK's own client: CPU of both processes", f"≤ {MCP_RATIO}"
    if mounted is None or alone is None:
        return Verdict(what, bar, f"no figures of {MCP_MOUNTED if mounted is None else MCP_STDIO}", None)
    ratio = mounted.cpu(ONE_BY_ONE) / alone.cpu(ONE_BY_ONE)
    return Verdict(what, bar, f"{ratio:.2f}", ratio <= MCP_RATIO)


def _held(what: str, bar: str, one_by_one: float, together: float, limit: float) -> Verdict:
    measured = f"{one_by_one:.3f} ms, 16 at once {together:.3f} ms"
    return Verdict(what, bar, measured, max(one_by_one, together) <= limit)
