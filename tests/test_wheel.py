"""The wheel and the sdist hold the package, the console's pages, type marker, licence and metadata, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import patchbay

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
PAGES = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "patchbay" / "console").iterdir()}


def build(kind: str, into: Path) -> Path:
    """Build offline with the installed backend: no isolation, no index."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=100,
    )
    (built,) = into.iterdir()
    return built


def documented_extras() -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "get-started" / "install.md").read_text(), re.MULTILINE)


def test_wheel_contains_only_the_package_and_its_licence(tmp_path):
    with zipfile.ZipFile(build("wheel", tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    info = next(name for name in names if name.endswith("/WHEEL")).removesuffix("WHEEL")
    metadata = {info + name for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert {".css", ".html", ".js", ".txt"} == {Path(name).suffix for name in PAGES}
    assert SOURCES | PAGES | {"patchbay/py.typed"} | metadata == names


def test_the_wheel_declares_its_name_the_licence_the_python_the_extras_and_the_command(tmp_path):
    with zipfile.ZipFile(build("wheel", tmp_path)) as wheel:
        texts = {name.rpartition("/")[2]: wheel.read(name).decode() for name in wheel.namelist() if "dist-info" in name}
    assert f"Name: patchbay-tools\nVersion: {patchbay.__version__}\n" in texts["METADATA"]
    assert (
        {"durable", "gemini", "local", "mcp", "metrics", "otel", "postgres"}
        == set(re.findall("Provides-Extra: (.+)", texts["METADATA"]))
        == set(documented_extras())
    )
    assert "License-Expression: MIT" in texts["METADATA"]
    assert "Requires-Python: >=3.11" in texts["METADATA"]
    assert "patchbay = patchbay.cli:main" in texts["entry_points.txt"]


def test_sdist_contains_only_sources_and_documents(tmp_path):
    with tarfile.open(build("sdist", tmp_path)) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    papers = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert {f"src/{name}" for name in SOURCES | PAGES} | {"src/patchbay/py.typed"} | papers == names


def test_every_text_names_the_distribution_where_it_names_an_extra():
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.*")]
    names = {
        found for path in texts for found in re.findall(r"([\w-]*)\[(?:mcp|postgres|gemini|local)\]", path.read_text("utf-8"))
    }
    assert {"patchbay-tools", ""} == names
