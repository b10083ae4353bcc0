"""``/metrics`` for Prometheus: what the server has counted, read when it is scraped.

prometheus-client is the extra ``patchbay-tools[metrics]``. It is imported by the first scrape; no request touches its objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import SQLAlchemyError

import patchbay
from patchbay.approvals import ApprovalRequest
from patchbay.hooks.process.client import ProcessHook
from patchbay.server.admin_api import admin_router
from patchbay.server.auth import METRICS_PATH
from patchbay.server.event_stream import EventStream
from patchbay.server.governance import Governance
from patchbay.server.turn_archive import TurnArchive
from patchbay.server.turns import TurnStore
from patchbay.server.usage import BOUNDS, Tally

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

EXTRA: Final = "Metrics need prometheus-client on the server: pip install 'patchbay-tools[metrics]', and start it again.\n"
_MAX_NAMED: Final = 200
"""Maximum hooks, servers and plugins that have their own restarts."""

Restarts = Callable[[], Iterable[tuple[str, int]]]
"""Returns names, with how often each was started again."""


@dataclass(frozen=True)
class MetricSources:
    """What metrics are read from. ``restarts`` are those of each kind of part ("mcp", "plugin"); hooks are the governance's."""

    turns: TurnStore
    events: EventStream
    governance: Governance | None = None
    archive: TurnArchive | None = None
    restarts: dict[str, Restarts] = field(default_factory=dict)


def make_metrics_router(sources: MetricSources, *, needs_token: bool) -> APIRouter:
    """Return the route of ``/metrics``. ``needs_token``: the server has a token."""
    refused: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {}}, "description": "In Prometheus' text format, or OpenMetrics where that is accepted."},
        401: {"description": "The server has a token, which was not sent."},
        404: {"description": "prometheus-client is not installed."},
    }
    router = admin_router("metrics", "read the metrics", needs_token=needs_token, prefix=METRICS_PATH)

    @router.get("", responses=refused, response_class=Response, summary="What the server has counted, for Prometheus")
    async def metrics(request: Request) -> Response:
        try:
            from prometheus_client.exposition import choose_encoder
        except ImportError:
            return Response(EXTRA, 404, media_type="text/plain")
        waiting = await _pending(sources.governance)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(_Collector(sources, waiting)), media_type=content_type, headers={"cache-control": "no-store"})

    return router


async def _pending(governance: Governance | None) -> list[ApprovalRequest] | None:
    """Return the requests for approval that wait; None where they cannot be read: the other metrics do not wait for it."""
    try:
        return await governance.approvals.pending() if governance is not None else []
    except SQLAlchemyError:
        return None


class _Collector:
    """The registry of one scrape."""

    def __init__(self, sources: MetricSources, waiting: list[ApprovalRequest] | None) -> None:
        self._sources = sources
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        sources = self._sources
        info = GaugeMetricFamily("patchbay_info", "The server; the value is always 1.", labels=["version"])
        info.add_metric([patchbay.__version__], 1)
        yield info
        yield from self._requests()
        yield from self._calls()
        if self._waiting is not None:
            oldest = min((each.created for each in self._waiting), default=None)
            yield GaugeMetricFamily("patchbay_approvals_waiting", "Calls that wait for a person.", len(self._waiting))
            yield GaugeMetricFamily(
                "patchbay_approvals_oldest_seconds",
                "How long the oldest of them has waited.",
                0.0 if oldest is None else max(0.0, time.time() - oldest),
            )
        text = "Starts after the first, of hooks, plugins and connections to MCP servers."
        restarts = CounterMetricFamily("patchbay_restarts", text, labels=["part", "name"])
        for part, name, number in self._restarts():
            restarts.add_metric([part, name], number)
        yield restarts
        depths = GaugeMetricFamily("patchbay_queue_depth", "What waits in queues of the server.", labels=["queue"])
        for name, number in self._depths().items():
            depths.add_metric([name], number)
        yield depths
        yield GaugeMetricFamily("patchbay_event_readers", "Readers of the event stream.", sources.events.readers)
        yield GaugeMetricFamily("patchbay_turn_store_bytes", "What the kept turns take.", sources.turns.size)

    def _requests(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        by_model: dict[tuple[str, ...], Tally] = {}
        outcomes: dict[tuple[str, ...], int] = {}
        answers: dict[tuple[str, ...], int] = {}
        for (model, protocol, outcome, mode, form, constraint), tally in self._sources.turns.usage.requests.items():
            by_model.setdefault((model,), Tally()).add(tally)
            _count(outcomes, (model, protocol, outcome), tally.count)
            if mode:
                _count(answers, (model, mode, form, constraint or "none"), tally.count)
        yield _counter("patchbay_requests", "Requests to models.", ["model", "protocol", "outcome"], outcomes)
        yield _counter(
            "patchbay_tool_requests",
            "Requests with tools: how the model got them, the format of its calls, and what constrained them.",
            ["model", "mode", "format", "constraint"],
            answers,
        )
        yield _histogram("patchbay_request_duration_seconds", "From a request to the end of its answer.", ["model"], by_model)
        for name, text, attribute in (
            ("patchbay_rounds", "Requests that models' servers were sent.", "rounds"),
            ("patchbay_asked_again", "Answers after which the model was asked again.", "again"),
            ("patchbay_repairs", "What the parser has repaired in calls.", "repairs"),
            ("patchbay_model_calls", "Calls in the answers of models.", "calls"),
        ):
            yield _counter(name, text, ["model"], {key: getattr(tally, attribute) for key, tally in by_model.items()})
        tokens = CounterMetricFamily(
            "patchbay_tokens", "Tokens as the models' servers count them; cached ones are part of the prompt's.",
            labels=["model", "kind"],
        )  # fmt: skip
        for (model,), tally in by_model.items():
            for kind, number in (("prompt", tally.prompt), ("completion", tally.completion), ("cached", tally.cached)):
                tokens.add_metric([model, kind], number)
        yield tokens

    def _calls(self) -> Iterator[Metric]:
        calls: dict[tuple[str, ...], int] = {}
        by_tool: dict[tuple[str, ...], Tally] = {}
        for (tool, role, outcome), tally in self._sources.turns.usage.calls.items():
            _count(calls, (tool, role, outcome), tally.count)
            if any(tally.buckets):
                by_tool.setdefault((tool,), Tally()).add(tally)
        yield _counter(
            "patchbay_calls", 'Calls of tools by outcome: "ok", "passed" to the client, or an error\'s code.',
            ["tool", "role", "outcome"], calls,
        )  # fmt: skip
        yield _histogram("patchbay_call_duration_seconds", "How long tools of this server ran.", ["tool"], by_tool)

    def _restarts(self) -> list[tuple[str, str, int]]:
        governance = self._sources.governance
        hooks = governance.hooks.mounted if governance is not None else ()
        found = [("hook", each.name, each.hook.restarts) for each in hooks if isinstance(each.hook, ProcessHook)]
        for part, read in self._sources.restarts.items():
            found += [(part, name, number) for name, number in read()]
        return found[:_MAX_NAMED]

    def _depths(self) -> dict[str, int]:
        governance, archive = self._sources.governance, self._sources.archive
        depths = {"turns": archive.waiting} if archive is not None else {}
        if governance is not None:
            depths["hook_events"] = governance.hooks.events.waiting
            if governance.audit is not None:
                depths["audit"] = governance.audit.waiting
        return depths


def _count(counts: dict[tuple[str, ...], int], key: tuple[str, ...], number: int) -> None:
    counts[key] = counts.get(key, 0) + number


def _counter(name: str, text: str, labels: list[str], counts: Mapping[tuple[str, ...], int]) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily

    family = CounterMetricFamily(name, text, labels=labels)
    for key, number in counts.items():
        family.add_metric(key, number)
    return family


def _histogram(name: str, text: str, labels: list[str], tallies: Mapping[tuple[str, ...], Tally]) -> Metric:
    from prometheus_client.metrics_core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text, labels=labels)
    for key, tally in tallies.items():
        total, buckets = 0, []
        for bound, number in zip((*map(str, BOUNDS), "+Inf"), tally.buckets, strict=True):
            total += number
            buckets.append((bound, total))
        family.add_metric(key, buckets, tally.seconds)
    return family
