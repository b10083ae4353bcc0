"""Is the cost linear? 200 KB beside 20 KB of every format and of texts that want to make it slow, whole and in pieces of 4."""

from __future__ import annotations

import math
from functools import partial

from bench.bars import Verdict
from bench.fidelity import carriers, hostile
from bench.fidelity.pool import Progress
from bench.fidelity.section import Section, at_most
from bench.fidelity.timing import Growth, growth
from bench.table import markdown
from patchbay.types import Reply

RATIO = 12.0
CUTS = {0: "whole", 4: "pieces of 4"}


def measure(*, only: str) -> Section:
    """Both families of texts. ``only`` is a piece of a text's name."""
    formats = [name for name in carriers.CARRIERS if only in name]
    others = [name for name in hostile.UNITS if only in name]
    progress = Progress("linear", (len(formats) + len(others)) * len(CUTS))
    found: dict[int, list[Growth]] = {cut: [] for cut in CUTS}
    for name in formats:
        for cut in CUTS:
            make = partial(carriers.text, name)
            found[cut].append(growth(name, make, cut, carriers.TOOLS, bar=RATIO, right=is_the_call))
            progress.step()
    for name in others:
        for cut in CUTS:
            make = partial(hostile.text, name)
            found[cut].append(growth(name, make, cut, carriers.TOOLS, bar=RATIO, right=_anything))
            progress.step()
    progress.done()
    count = len(formats)
    verdicts = [
        *(growth_verdict(f"200 KB beside 20 KB, {len(formats)} formats, {CUTS[cut]}: CPU", found[cut][:count]) for cut in CUTS),
        *(
            growth_verdict(f"200 KB beside 20 KB, {len(others)} hostile texts, {CUTS[cut]}: CPU", found[cut][count:])
            for cut in CUTS
        ),
        at_most("200 KB calls that auto read wrongly", 0, sum(not one.right for one in found[0][:count]), of=count),
    ]
    raw = {CUTS[cut]: {one.name: vars(one) | {"ratio": one.ratio} for one in found[cut]} for cut in CUTS}
    return Section(verdicts, details=[_table(found, count)], raw={"linear": raw})


def is_the_call(reply: Reply) -> bool:
    """The reply is the one call of a carrier, with its whole argument."""
    if len(reply.tool_calls) != 1:
        return False
    call = reply.tool_calls[0]
    content = call.arguments.get(carriers.KEY)
    return call.name == carriers.NAME and content in (carriers.value(200_000), carriers.value(20_000), carriers.value(2_000))


def _anything(_reply: Reply) -> bool:
    return True


def growth_verdict(what: str, found: list[Growth]) -> Verdict:
    worst = max(found, key=lambda one: one.ratio, default=None)
    if worst is None:
        return Verdict(what, f"≤ {RATIO:g}", "no such text", None)
    above = sum(one.ratio > RATIO for one in found)
    shown = "stopped" if worst.ratio == math.inf else f"{worst.ratio:.1f}"
    measured = f"{shown} ({worst.name})" + (f", {above} above" if above > 1 else "")
    return Verdict(what, f"≤ {RATIO:g}", measured, worst.ratio <= RATIO)


def _table(found: dict[int, list[Growth]], formats: int) -> str:
    rows = []
    for at, (whole, cut) in enumerate(zip(*found.values(), strict=True)):
        name = f"`{whole.name}`" if at < formats else whole.name
        right = "" if at >= formats or (whole.right and cut.right) else "no"
        rows.append([name, *(_cells(whole)), *(_cells(cut)), right])
    header = ["200 KB of", "whole: ms", "beside 20 KB", "pieces of 4: ms", "beside 20 KB", "call found"]
    return f"CPU time of 200 KB (auto, all formats on), and how many times that of 20 KB.\n\n{markdown(header, rows)}"


def _cells(one: Growth) -> list[str]:
    if one.large == math.inf:
        return ["stopped", "–"]
    return [f"{one.large * 1e3:,.1f}", f"×{one.ratio:.1f}"]
