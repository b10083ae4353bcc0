"""The charts show what the recorded tables hold."""

from __future__ import annotations

import re

from bench import charts

TEXT = """\
Bars. Commit `0123456789ab`. 2 cores, Linux 6.1.2, Python 3.11.7.

| | bar |
| --- | --- |
| a | 1 |

Turns: CPU time
of a turn.

| CPU µs | 1 call | 4 calls |
| --- | --: | --: |
| patchbay 0.1.0 | 1,234 [1,200–1,300] | 2,000 |
| a <peer> | 56.7 | 80 |
| absent | – | – |
"""


def test_tables_are_recorded_with_commit_machine_and_the_paragraph_above_them():
    data = charts.recorded("bench", TEXT)
    assert ("0123456789ab", "2 cores, Linux 6.1.2, Python 3.11.7") == (data["commit"], data["machine"])
    assert "Turns: CPU time of a turn." == data["tables"][1]["title"]
    assert ["patchbay 0.1.0", "1,234 [1,200–1,300]", "2,000"] == data["tables"][1]["rows"][0]


def test_bars_are_the_numeric_cells_of_one_column():
    (chart,) = (each for each in charts.ALL if each.name == "turns")
    assert [("patchbay 0.1.0", "1,234"), ("a <peer>", "56.7")] == list(charts.bars_of(chart, charts.tables_of(TEXT)[1]))


def test_a_chart_is_made_for_each_table_that_was_measured_and_escapes_its_labels():
    ((name, svg),) = charts.charts_of(charts.recorded("bench", TEXT))
    assert "turns" == name
    assert "a &lt;peer&gt;" in svg
    assert "Commit 0123456789ab" in svg


def test_bars_are_proportional_and_begin_behind_the_longest_label():
    label = "a peer with a name that is longer than most, 1.2.3"
    svg = charts.svg(charts.ALL[0], [(label, "1,000"), ("patchbay", "250")], "")
    (x, width), (_, quarter) = re.findall(r'<rect class="." x="(\d+)" y="\d+" width="([\d.]+)"', svg)
    assert (f">{label}</text>" in svg, 4.0) == (True, float(width) / float(quarter))
    assert 7 * len(label) < int(x)
