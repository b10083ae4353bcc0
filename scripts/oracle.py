"""An oracle for refactoring: what the project does at its public faces, frozen in tests/oracle, and compared with what it does now.

    python scripts/oracle.py write [--only KIND]     freeze what it does now
    python scripts/oracle.py check [--only KIND]     compare; exit status 1 where something differs

A difference is a bug, or a decision: then ``write``, and the diff of tests/oracle is reviewed with the change. Only public names, the
command line, HTTP and other wires are used, so that renaming, merging and deleting modules leaves the oracle as it is.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from oracle_kinds import ROOT, Recorded

KINDS = {
    "texts": "replies and events of every text, whole and in pieces",
    "proxy": "what the proxy answers, and what it sends upstream",
    "openapi": "the descriptions of HTTP applications",
    "help": "--help of every command",
    "hooks": "what hook processes and their host say to each other",
    "plugins": "what plugins, their host and a server say to each other",
    "realtime": "frames of realtime sessions with each provider's fake",
}
FROZEN = ROOT / "tests" / "oracle"
WHOLE = ROOT / ".build" / "oracle.diff"
SHOWN = 3
"""So many differences of a file are printed; all of them are in WHOLE."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "check"))
    kinds = "; ".join(f"{kind}: {about}" for kind, about in KINDS.items())
    parser.add_argument("--only", action="append", choices=KINDS, metavar="KIND", help=f"may be repeated. {kinds}")
    options = parser.parse_args(argv)
    found: list[str] = []
    for kind in options.only or KINDS:
        began = time.monotonic()
        recorded = record(kind)
        for name, why in recorded.absent.items():
            print(f"{kind}: {name} skipped: {why}")
        if options.what == "write":
            write(kind, recorded)
            result = f"{len(recorded.files)} files written"
        else:
            differences = check(kind, recorded)
            found += differences
            result = f"{len(differences)} differences" if differences else "as it was"
        print(f"{kind}: {result} ({time.monotonic() - began:.0f} s)", flush=True)
    if found:
        WHOLE.parent.mkdir(parents=True, exist_ok=True)
        WHOLE.write_text("\n".join(found) + "\n", encoding="utf-8")
        print(
            f"All {len(found)} differences are in {WHOLE.relative_to(ROOT)}. Where they are meant: python scripts/oracle.py write"
        )
    return 1 if found else 0


def record(kind: str) -> Recorded:
    """Have one kind recorded, as on a machine with no settings of ours and a terminal of 80 columns."""
    for name in [name for name in os.environ if name.startswith(("PATCHBAY_", "UPSTREAM_", "NEKO_"))]:
        del os.environ[name]
    os.environ |= {"COLUMNS": "80", "LINES": "50", "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC"}
    recorded: Recorded = importlib.import_module(f"oracle_kinds.{kind}").record()
    return recorded


def write(kind: str, recorded: Recorded) -> None:
    """Write each file at once: one who reads meanwhile sees the old one or the new one. Remove those that are no more."""
    for name, text in recorded.files.items():
        path = FROZEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    for path in frozen(kind) - {FROZEN / name for name in (*recorded.files, *recorded.absent)}:
        path.unlink()


def check(kind: str, recorded: Recorded) -> list[str]:
    """Return all differences, after printing the first of each file."""
    found = []
    for name, text in recorded.files.items():
        path = FROZEN / name
        before = path.read_bytes().decode() if path.is_file() else ""
        if before != text:
            differences = (recorded.compare or compare)(name, before, text)
            for difference in differences[:SHOWN]:
                print(f"{name}: {shortened(difference)}")
            if len(differences) > SHOWN:
                print(f"{name}: and {len(differences) - SHOWN} more")
            found += [f"{name}: {difference}" for difference in differences]
    gone = frozen(kind) - {FROZEN / name for name in (*recorded.files, *recorded.absent)}
    return found + [f"{path.relative_to(FROZEN)}: is not recorded any more" for path in sorted(gone)]


def frozen(kind: str) -> set[Path]:
    """Return the files of a kind."""
    return {path for path in (FROZEN / kind).rglob("*") if path.is_file()}


def compare(_name: str, before: str, now: str) -> list[str]:
    """Return the places where lines differ."""
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "frozen", "now", lineterm="", n=2))
    places: list[list[str]] = []
    for line in lines[2:]:
        if line.startswith("@@"):
            places.append([])
        places[-1].append(line)
    return ["\n".join(place) for place in places] or ["only line ends differ"]


def shortened(difference: str) -> str:
    lines = [line if len(line) < 240 else f"{line[:240]}…" for line in difference.splitlines()]
    return "\n".join([*lines[:12], *(["…"] if len(lines) > 12 else [])])


if __name__ == "__main__":
    sys.exit(main())
