"""Bar charts of the recorded tables, as SVG.

    python -m bench.charts        draw docs/project/charts/*.svg again from docs/project/data/*.json

``--write`` of a suite records its tables in ``docs/project/data`` and draws the charts from there, so that tables and charts agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from bench.places import PROJECT

DATA, CHARTS = PROJECT / "data", PROJECT / "charts"

_COMMIT = re.compile(r"Commit `(?P<commit>[^`]+)`\. (?P<machine>[^.]+(?:\.\d[^.]*)*)\.")
_NUMBER = re.compile(r"(?P<number>\d[\d,]*(?:\.\d+)?)")
_WIDTH, _BAR, _GAP, _TOP, _VALUE = 760, 20, 8, 56, 80
_CHARACTER = 7.4
"""Width of an average character of the labels; wider fonts have room to the left."""

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.t{font-weight:600;font-size:15px}.s{fill:#57606a;font-size:11px}"
    ".o{fill:#0b8a7b}.p{fill:#9aa4af}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9da7b3}.o{fill:#2bbfae}.p{fill:#57606a}}"
)


@dataclass(frozen=True)
class Chart:
    """Which column of which table is drawn. ``transposed``: the bars are the columns of the row ``pick``."""

    name: str
    title: str
    suite: str
    table: str
    pick: str
    unit: str
    transposed: bool = False
    rows: str = ""


ALL = (
    Chart(
        "proxy-request", "Proxies: CPU per request with tools", "bench", "Proxies", "Request with tools", "µs", transposed=True
    ),
    Chart("proxy-stream", "Proxies: CPU per 200-event stream", "bench", "Proxies", "200-event stream", "µs", transposed=True),
    Chart("turns", "Frameworks: CPU per agent turn with 1 call", "bench", "Turns: ", "1 call", "µs"),
    Chart("clients", "Turn over the openai client, 300 tools, 200 messages: CPU", "bench", "Turns over", "300 tools, 200", "ms"),
    Chart("calls", "One tool call: CPU of all processes", "bench", "Calls", "CPU of all", "µs"),
    Chart("fidelity", "Calls read correctly", "fidelity", "Fidelity", "measured", "%", rows=r"calls right"),
)


def tables_of(text: str) -> list[dict[str, Any]]:
    """Return the Markdown tables of ``text``, each with the paragraph above it."""
    found: list[dict[str, Any]] = []
    lines: list[list[str]] = []
    title, paragraph = "", ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            continue
        if lines:
            found.append({"title": title, "header": lines[0], "rows": lines[2:]})
            lines = []
        paragraph = f"{paragraph} {line}".strip() if line else ""
        title = paragraph or title
    return found


def recorded(suite: str, text: str) -> dict[str, Any]:
    """Return the tables of a run as they are recorded."""
    named = _COMMIT.search(text)
    return {"suite": suite, **(named.groupdict() if named else {}), "tables": tables_of(text)}


def record(suite: str, text: str) -> None:
    """Write the tables of a run as JSON, and draw their charts."""
    data = json.dumps(recorded(suite, text), indent=1, ensure_ascii=False)
    DATA.mkdir(exist_ok=True)
    (DATA / f"{suite}.json").write_text(f"{data}\n", encoding="utf-8")
    draw()


def charts_of(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and SVG of each chart that the recorded tables have data for."""
    for chart in ALL:
        table = next((each for each in data["tables"] if each["title"].startswith(chart.table)), None)
        if chart.suite == data["suite"] and table is not None and (bars := list(bars_of(chart, table))):
            yield chart.name, svg(chart, bars, f"Commit {data.get('commit', 'unknown')}, {data.get('machine', '')}")


def bars_of(chart: Chart, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and value of each bar, as they are in the table; cells without a number are left out."""
    if chart.transposed:
        row = next((each for each in table["rows"] if each[0].startswith(chart.pick)), None)
        cells = zip(table["header"][1:], row[1:], strict=True) if row else ()
    else:
        column = next((index for index, head in enumerate(table["header"]) if index and head.startswith(chart.pick)), None)
        cells = ((row[0], row[column]) for row in table["rows"] if re.search(chart.rows, row[0])) if column else ()
    for label, cell in cells:
        if number := _NUMBER.match(cell):
            yield label, number["number"]


def svg(chart: Chart, bars: list[tuple[str, str]], source: str) -> str:
    """Draw horizontal bars from zero, ours in colour, behind the longest label."""
    values = [float(value.replace(",", "")) for _, value in bars]
    left = round(max(len(label) for label, _ in bars) * _CHARACTER) + 16
    height = _TOP + len(bars) * (_BAR + _GAP) + 4
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(chart.title)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="t" x="8" y="22">{escape(chart.title)}, {chart.unit}</text>',
        f'<text class="s" x="8" y="41">{escape(source)}</text>',
    ]
    for number, ((label, text), value) in enumerate(zip(bars, values, strict=True)):
        width = max(2.0, value / max(values) * (_WIDTH - left - _VALUE))
        y = _TOP + number * (_BAR + _GAP)
        kind = (
            "o"
            if re.match(
                r"patchbay|the same process|a plugin|an HTTP callback|POST /api|an MCP server over stdio|Formats|BFCL", label
            )
            else "p"
        )
        lines += [
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="{kind}" x="{left}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>',
            f'<text x="{left + width + 6:.1f}" y="{y + 15}">{escape(text)}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])


def draw() -> None:
    """Draw all charts from the recorded tables."""
    for path in sorted(DATA.glob("*.json")):
        for name, text in charts_of(json.loads(path.read_text(encoding="utf-8"))):
            CHARTS.mkdir(exist_ok=True)
            (CHARTS / f"{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    draw()
