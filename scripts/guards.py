"""Break each guard of tests/guards.toml once, in a copy of src/, and expect its test to fail.

    python scripts/guards.py               every guard
    python scripts/guards.py token SSE     those whose names contain one of the words

The tests run on the unchanged source first. Exit status 1 if one fails there, and if a guard does not hold: its text is not found exactly
once, or its test passes without it.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TIMEOUT: Final = 180
FAILED: Final = 1
"""pytest's exit status when tests ran and one failed. The others above 0 mean that it could not run them."""


@dataclass(frozen=True)
class Guard:
    """A check in the source, and the test that proves it. ``file`` is below src/patchbay, ``test`` below tests."""

    name: str
    file: str
    text: str
    replacement: str
    test: str


def read_guards() -> list[Guard]:
    """Return the guards of tests/guards.toml."""
    rows = tomllib.loads((ROOT / "tests" / "guards.toml").read_text(encoding="utf-8"))["guard"]
    return [Guard(**row) for row in rows]


class NotProvedError(Exception):
    """The guard does not hold. ``str(error)`` says why."""


def broken_source(guard: Guard, path: Path) -> str:
    """Return the file's source without the guard."""
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    if (count := source.count(guard.text)) != 1:
        raise NotProvedError(f"its text is found {count} times in {guard.file}")
    broken = source.replace(guard.text, guard.replacement)
    try:
        ast.parse(broken)
    except SyntaxError as error:
        raise NotProvedError(f"its replacement is a syntax error: {error}") from None
    return broken


def run_tests(tests: Iterable[str], source: Path, *options: str) -> tuple[int, str]:
    """Run tests with the package of ``source``; return pytest's exit status and output."""
    command = [sys.executable, "-m", "pytest", "--tb=short", *options, *(f"tests/{test}" for test in tests)]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def check(guard: Guard, source: Path) -> None:
    """Raise NotProvedError unless the guard's test fails without it."""
    path = source / "patchbay" / guard.file
    broken = broken_source(guard, path)
    kept = path.with_suffix(".kept")
    path.rename(kept)
    try:
        path.write_text(broken, encoding="utf-8")
        status, output = run_tests([guard.test], source, "-x", f"--timeout={TIMEOUT}")
    finally:
        kept.replace(path)
    if status == 0:
        raise NotProvedError(f"tests/{guard.test} passes without it")
    if status != FAILED:
        raise NotProvedError(f"tests/{guard.test} cannot be run:\n{output}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of names (default: every guard)")
    words = [word.lower() for word in parser.parse_args().words]
    guards = [guard for guard in read_guards() if any(word in guard.name.lower() for word in words or [""])]
    if not guards:
        parser.error(f"no guard's name has {' or '.join(words)} in it")
    progress = sys.stderr.isatty()
    problems = []
    with tempfile.TemporaryDirectory(prefix="patchbay-guards-") as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source)
        status, output = run_tests(dict.fromkeys(guard.test for guard in guards), source)
        if status != 0:
            print(output, "The tests fail without a broken guard.", sep="\n", file=sys.stderr)
            return 1
        for number, guard in enumerate(guards, 1):
            if progress:
                print(f"\r\x1b[K{number}/{len(guards)} {guard.name}", end="", file=sys.stderr, flush=True)
            try:
                check(guard, source)
            except NotProvedError as error:
                problems.append(f"{guard.name}: {error}")
    if progress:
        print("\r\x1b[K", end="", file=sys.stderr)
    print(*problems, f"{len(guards) - len(problems)} of {len(guards)} guards hold.", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
