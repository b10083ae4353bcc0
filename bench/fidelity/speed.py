"""How fast is a stream read, with auto and all formats on? Prose, and the arguments of a call in every format."""

from __future__ import annotations

from bench import texts
from bench.bars import Verdict
from bench.fidelity import carriers
from bench.fidelity.linear import is_the_call
from bench.fidelity.pool import Progress
from bench.fidelity.section import Section
from bench.fidelity.timing import Cost, cost
from bench.table import markdown

PROSE = {40: 12.0, 4: 1.2}
"""Million characters per second of CPU, by the size of the pieces."""
ARGUMENTS = 0.8
SIZES = (2_000, 20_000, 200_000)
_PIECE = 4

_BUSY = (
    "- **Step 1**: set `limit < 10 && limit > 2` in [the settings](https://example.com/a_b), then {see below}.\n"
    'The answer was {"status": "ok", "items": [1, 2]} (at 10:30), and "that" isn\'t <b>all</b> of it.\n'
)
"""Prose with everything in it that might begin a call, and does not."""


def measure(*, only: str) -> Section:
    """Prose and calls. ``only`` is a piece of a format's name."""
    names = [name for name in carriers.CARRIERS if only in name]
    progress = Progress("speed", len(PROSE) * 2 + len(names) * len(SIZES))
    prose: dict[tuple[str, int], float] = {}
    for kind, text in (("prose", _prose()), ("busy prose", _BUSY * (200_000 // len(_BUSY)))):
        for size in PROSE:
            prose[kind, size] = _speed(text, cost(text, size, carriers.TOOLS, readings=5))
            progress.step()
    speeds: dict[str, list[float]] = {}
    wrong: list[str] = []
    for name in names:
        speeds[name] = []
        for size in SIZES:
            text = carriers.text(name, size)
            spent = cost(text, _PIECE, carriers.TOOLS, readings=3)
            if not is_the_call(spent.reply):
                wrong.append(f"{name} {size}")
            speeds[name].append(_speed(text, spent))
            progress.step()
    progress.done()
    verdicts = [
        *(
            Verdict(
                f"Prose in pieces of {size}, million characters per second of CPU",
                f"≥ {bar:g}",
                f"{prose['prose', size]:.2f}",
                prose["prose", size] >= bar,
            )
            for size, bar in PROSE.items()
        ),
        *(_slowest(f"{size // 1000} KB", at, speeds, wrong) for at, size in enumerate(SIZES)),
    ]
    raw = {"prose": {f"{kind}, {size}": value for (kind, size), value in prose.items()}, "arguments": speeds, "wrong": wrong}
    return Section(verdicts, [_table_of_prose(prose)], [_table_of_calls(speeds, wrong)], {"speed": raw})


def _prose() -> str:
    """Lines of plain prose with a fence of code now and then."""
    return texts.text("prose", 200_000)


def _speed(text: str, spent: Cost) -> float:
    return len(text) / spent.seconds / 1e6


def _slowest(length: str, at: int, speeds: dict[str, list[float]], wrong: list[str]) -> Verdict:
    what = f"Arguments of {length} in pieces of {_PIECE}, the slowest of the formats, million characters per second of CPU"
    # A call that was not found was read as prose: its speed says nothing.
    found = {name: values[at] for name, values in speeds.items() if f"{name} {SIZES[at]}" not in wrong}
    if not found:
        return Verdict(what, f"≥ {ARGUMENTS:g}", "no call was found", None)
    name = min(found, key=lambda one: found[one])
    return Verdict(what, f"≥ {ARGUMENTS:g}", f"{found[name]:.2f} ({name})", found[name] >= ARGUMENTS)


def _table_of_prose(prose: dict[tuple[str, int], float]) -> str:
    kinds = list(dict.fromkeys(kind for kind, _ in prose))
    table = markdown(
        ["", *(f"pieces of {size}" for size in PROSE)],
        [[kind.capitalize(), *(f"{prose[kind, size]:.2f}" for size in PROSE)] for kind in kinds],
    )
    return f"Streaming, million characters per second of CPU (auto, all formats on).\n\n{table}"


def _table_of_calls(speeds: dict[str, list[float]], wrong: list[str]) -> str:
    def cell(name: str, size: int, value: float) -> str:
        return f"{value:.2f}" + (" (not found)" if f"{name} {size}" in wrong else "")

    table = markdown(
        ["one call", *(f"{size // 1000} KB" for size in SIZES)],
        [
            [f"`{name}`", *(cell(name, size, value) for size, value in zip(SIZES, values, strict=True))]
            for name, values in speeds.items()
        ],
    )
    return f"The same for the arguments of a call, in pieces of {_PIECE}, by format.\n\n{table}"
