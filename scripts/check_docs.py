"""Documentation that cannot lie: every example runs, every command exists, every quoted help text is the real one.

    python scripts/check_docs.py           check README.md, docs/, examples/ and the other pages
    python scripts/check_docs.py --write   write the generated parts first

What is checked, in every page:

- ```python blocks run, one after the other in one process for a page. Ollama's address is a scripted model server in them,
  and the proxy's own address a proxy before it. A ```text output block behind one holds what it prints (``...`` is anything).
- ```sh blocks: the commands, flags, make targets and modules exist; a script is looked for from the page's own folder.
- the text between ``<!-- generated: COMMAND -->`` and ``<!-- end -->`` is the command's output, and between ``<!-- table: NAME -->`` and
  ``<!-- end -->`` a table of ``reference.py``.
- relative links and anchors lead somewhere.
- tables of ``make bench``, ``make fidelity`` and ``make constrained`` name the commit that was measured, and the measured code is still much like it.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

from patchbay import cli
from patchbay.cli.children import listening
from patchbay.testing import ContractModel, ScriptedUpstream

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
TERMINAL = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
ONE_AT_A_TIME = threading.Lock()
"""Held while standard output is a text of ours."""
OLLAMA = "http://localhost:11434/v1"
PROXY = "http://127.0.0.1:8787/v1"
INTERPRETERS = {"python", "node"}
KNOWN_PROGRAMS = {"cd", "curl", "export", "git", "node", "npx", "ollama", "pip", "uv", ".ci/run"}
SECONDS_PER_PAGE = 120
# What the tables of each suite measure; once a path below one of these has changed by more lines, a note says so.
MEASURED = {"bench": "src/patchbay/*", "fidelity": "src/patchbay/formats", "constrained": "src/patchbay/constraints"}
MOST_CHANGED_LINES = 2_000

FENCE = re.compile(r"^(?P<ticks>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=ticks)$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- (?P<kind>generated|table): (?P<name>.+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)
TABLES = re.compile(
    r"<!-- (?P<suite>bench|fidelity|constrained)(?P<rest>[ \w]*): begin -->\n(?P<body>.*?)<!-- (?P=suite)(?P=rest): end -->",
    re.DOTALL,
)
MEASURED_COMMIT = re.compile(r"Commit `(?P<commit>[0-9a-f]{7,40})`")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
INCLUDED = re.compile(r"^<!-- include: ", re.MULTILINE)
"""Pages that are included when the site is built, whose anchors mkdocs checks."""
HEADING = re.compile(r"^#{1,6} +(?P<title>.+)$", re.MULTILINE)

# Runs a page's blocks and says where the output of each begins.
RUN_BLOCKS = """
import sys
names = {"__name__": "__main__"}
for path in sys.argv[1:]:
    print("\\x00" + path, flush=True)
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), names)
"""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, and the line where it begins."""

    info: str
    body: str
    line: int
    gap: str
    """The text between the block before and this one."""


def blocks_of(text: str) -> list[Block]:
    blocks, end = [], 0
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        blocks.append(Block(fence["info"].strip(), fence["body"], line, text[end : fence.start()]))
        end = fence.end()
    return blocks


def check_examples(page: Path, blocks: list[Block], addresses: dict[str, str]) -> Iterator[str]:
    """Run the page's Python, and compare what it prints with what the page says it prints."""
    python = [(index, block) for index, block in enumerate(blocks) if block.info == "python"]
    if not python:
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for index, block in python:
            # Leading empty lines make a traceback's line numbers those of the page.
            code = "\n" * block.line + block.body
            for said, real in addresses.items():
                code = code.replace(said, real)
            paths[index] = Path(folder, f"{page.stem}_{block.line}.py")
            paths[index].write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", RUN_BLOCKS, *map(str, paths.values())],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS_PER_PAGE,
            check=False,
        )
    if done.returncode != 0:
        yield f"an example fails (exit status {done.returncode}):\n{done.stderr}"
        return
    printed = dict(part.split("\n", 1) for part in done.stdout.split("\x00")[1:])
    for index, _ in python:
        after = blocks[index + 1] if index + 1 < len(blocks) else None
        if after is not None and after.info == "text output" and not after.gap.strip():
            pattern = ".*".join(map(re.escape, after.body.strip().split("...")))
            said = printed[str(paths[index])].strip()
            if re.fullmatch(pattern, said, re.DOTALL) is None:
                yield f"line {after.line}: the example above prints\n{said}"


def check_commands(blocks: list[Block], folder: Path = ROOT) -> Iterator[str]:
    """Look up every command of the shell blocks of a page in ``folder``."""
    for block in blocks:
        if block.info not in ("sh", "console"):
            continue
        for line in block.body.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            problem = wrong_with(words, folder) if words else None
            if problem is not None:
                yield f"line {block.line}: {problem}"


def wrong_with(words: list[str], folder: Path) -> str | None:
    while "=" in words[0]:
        words = words[1:]
    program = words[0].rpartition("/")[2] if words[0].startswith(".venv/") else words[0]
    if program == "make":
        return next(
            (f"make has no target {word!r}" for word in words[1:] if "=" not in word and word not in make_targets()), None
        )
    if program == "patchbay":
        depth = 2 if len(words) > 1 and not words[1].startswith("-") else 1
        shown = help_of(*words[1:depth])
        if shown is None:
            return f"there is no command {' '.join(words[:depth])!r}"
        if depth == 2 and len(words) > 2 and not words[2].startswith("-") and " COMMAND " in shown:  # a command with commands
            depth = 3
            shown = help_of(*words[1:depth])
            if shown is None:
                return f"there is no command {' '.join(words[:depth])!r}"
        own = itertools.takewhile(lambda word: word != "--", words[depth:])  # behind it is the command of another program
        flags = [word.partition("=")[0] for word in own if word.startswith("--")]
        return next((f"{' '.join(words[:depth])} has no {flag}" for flag in flags if not has_flag(shown, flag)), None)
    if program.startswith("python") and "-m" in words:
        module = words[words.index("-m") + 1]
        sys.path.insert(0, str(ROOT))
        return None if importlib.util.find_spec(module) else f"there is no module {module}"
    if program in INTERPRETERS and len(words) > 1 and not words[1].startswith("-"):
        return None if (folder / words[1]).is_file() else f"there is no file {words[1]}"
    return None if program in KNOWN_PROGRAMS or program.startswith("python") else f"what is {program!r}?"


def has_flag(shown: str, flag: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", shown) is not None


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def help_of(*command: str) -> str | None:
    """Return what ``patchbay COMMAND --help`` prints, in this process: another one for each would take a second of CPU time."""
    with ONE_AT_A_TIME, patch.dict(os.environ, TERMINAL), redirect_stdout(io.StringIO()) as shown:
        try:
            cli.main([*command, "--help"])
        except SystemExit as end:
            return None if end.code else shown.getvalue()
    return shown.getvalue()


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run one of our commands as a terminal of 80 columns without colours shows it."""
    environment = {**os.environ, **TERMINAL}
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_PER_PAGE, env=environment, check=False)


def generate(kind: str, name: str) -> str:
    if kind == "table":
        sys.path.insert(0, str(ROOT / "scripts"))
        import reference

        return f"\n{reference.TABLES[name]()}\n"
    return output_of(name)


@cache
def output_of(command: str) -> str:
    program, *rest = shlex.split(command)
    if program == "patchbay" and rest[-1] == "--help":
        shown = help_of(*rest[:-1])
        if shown is None:
            raise SystemExit(f"{command} fails")
    else:
        done = run([sys.executable, *(["-m", "patchbay"] if program == "patchbay" else []), *rest])
        if done.returncode != 0:
            raise SystemExit(f"{command} fails:\n{done.stderr}")
        shown = done.stdout
    lines = (line.rstrip() for line in shown.strip("\n").splitlines())
    return "```text\n" + "\n".join(lines) + "\n```\n"


def write_generated(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    written = GENERATED.sub(
        lambda found: f"<!-- {found['kind']}: {found['name']} -->\n{generate(found['kind'], found['name'])}<!-- end -->", text
    )
    if written != text:
        page.write_text(written, encoding="utf-8")
        print(f"{page.relative_to(ROOT)} written")


def check_generated(text: str) -> Iterator[str]:
    for found in GENERATED.finditer(text):
        if found["body"] != generate(found["kind"], found["name"]):
            yield f"the part generated by '{found['name']}' has changed: make docs writes it"


def check_links(page: Path, text: str) -> Iterator[str]:
    for found in LINK.finditer(FENCE.sub("", text)):
        target, _, anchor = found["target"].partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        path = page.parent / target if target else page
        if not path.exists():
            yield f"the link to {found['target']} leads nowhere"
        elif anchor and not INCLUDED.search(path.read_text(encoding="utf-8")) and anchor not in anchors(path):
            yield f"{path.name} has no heading for #{anchor}"


def check_tables(text: str) -> Iterator[str]:
    """Compare the commit that each benchmark table names with the tree. Nothing is checked outside of a git checkout."""
    for found in TABLES.finditer(text):
        if not found["body"].strip():
            continue  # not measured yet
        suite = found["suite"]
        named = MEASURED_COMMIT.search(found["body"])
        if named is None:
            yield f"the tables of {suite} name no commit: write them again with --write (bench/README.md)"
        elif (ROOT / ".git").exists():
            if not in_history(named["commit"]):
                yield f"the tables of {suite}: commit {named['commit']} is not in the history: measure again"
                continue
            for note in outdated(named["commit"], MEASURED[suite]):
                print(f"note: the tables of {suite}: {note}", file=sys.stderr)


def in_history(commit: str, root: Path = ROOT) -> bool:
    """Return whether HEAD descends from ``commit``."""
    return run(["git", "-C", str(root), "merge-base", "--is-ancestor", commit, "HEAD"]).returncode == 0


def outdated(commit: str, pattern: str, root: Path = ROOT) -> Iterator[str]:
    """Yield a note for each path of ``pattern`` that has changed a lot since ``commit``, be it by moves: figures may differ."""
    for path in sorted(root.glob(pattern)):
        changed = run(["git", "-C", str(root), "diff", "--numstat", "--find-renames", commit, "--", str(path)]).stdout
        lines = sum(int(count) for line in changed.splitlines() for count in line.split("\t")[:2] if count.isdecimal())
        if lines > MOST_CHANGED_LINES:
            yield f"{path.relative_to(root)} has changed by {lines:,} lines since commit {commit}: measure again"


@cache
def anchors(page: Path) -> set[str]:
    """List the anchors of a page's headings, spelled as the usual hosts spell them."""
    titles = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def main() -> None:
    if "--write" in sys.argv[1:]:
        for page in PAGES:
            write_generated(page)
    problems: list[str] = []
    with ExitStack() as stack:
        upstream = stack.enter_context(ScriptedUpstream(ContractModel(), tools="refuse"))
        command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url]
        proxy = stack.enter_context(listening(command, name="patchbay proxy")).url

        def check(page: Path) -> list[str]:
            text = page.read_text(encoding="utf-8")
            blocks = blocks_of(text)
            found = [
                *check_examples(page, blocks, {OLLAMA: upstream.url, PROXY: proxy}),
                *check_commands(blocks, page.parent),
                *check_generated(text),
                *check_links(page, text),
                *check_tables(text),
            ]
            return [f"{page.relative_to(ROOT)}: {problem}" for problem in found]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for found in pool.map(check, PAGES):
                problems += found
    if problems:
        raise SystemExit("\n".join(problems))
    print(f"{len(PAGES)} pages: the examples run, the commands exist, the quoted help is current.")


if __name__ == "__main__":
    main()
