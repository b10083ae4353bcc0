"""Write docs/assets/demo.svg: the terminal of ``patchbay demo``. Addresses, process ids and call ids are replaced by fixed ones."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

TARGET = Path(__file__).resolve().parents[1] / "docs" / "assets" / "demo.svg"
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="patchbay demo">
<style>.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""
"""rich's own format without fonts of another host."""


def steady(text: str) -> str:
    """Replace what differs from run to run."""
    for pattern, prefix in (
        (r"call_([0-9a-f]{24})", "0" * 22),
        (r"127\.0\.0\.1:(\d+)", "80"),
        (r'(?:process |pid(?:":)? )(\d+)', "40"),
    ):
        for number, found in enumerate(dict.fromkeys(re.findall(pattern, text)), 11):
            text = re.sub(rf"(?<!\w){found}(?!\w)|(?<=call_){found}", f"{prefix}{number}", text)
    return text


def main() -> None:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "patchbay", "demo"], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    lines = steady(done.stdout).strip("\n").splitlines()
    console = Console(record=True, width=86, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text(line, style="" if line.startswith("  ") else "bold bright_cyan"), highlight=False)
    TARGET.parent.mkdir(exist_ok=True)
    svg = console.export_svg(title="patchbay demo", theme=MONOKAI, code_format=FORMAT, unique_id="demo")
    TARGET.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
