"""What the programs of this folder share: the table of a page of the documentation, and packages of PyPI in an environment."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


def write_table(page: Path, name: str, lines: Iterable[str]) -> None:
    """Print a table and write it between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` of a page."""
    table = "\n".join(lines)
    print(table)
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    text = page.read_text(encoding="utf-8")
    page.write_text(marked.sub(lambda _: f"{begin}{table}\n{end}", text), encoding="utf-8")


def make_environment(folder: Path, *arguments: str | Path) -> None:
    """Make a virtual environment anew, with what ``pip install`` is given. Raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    subprocess.run([*pip, *arguments], check=True)
