"""What must exist before anything is measured: the compiled load and upstream, and the peers in environments of their own.

Everything goes into the git-ignored build folder, once; a stamp with the hash of its recipe tells when it is stale.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.places import BUILD, HERE, SHARED, UnavailableError, say

PEERS = HERE / "peers"
_FETCH_LIMIT = 900.0


def load_tools() -> Path:
    """The folder with the programs ``upstream`` and ``load`` and the bodies in ``canned/``."""
    if not SHARED.is_dir():
        raise UnavailableError(
            "the load and upstream sources are not here: ../shared/bench/proxy is missing beside the repository"
        )
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise UnavailableError("no C compiler (cc or gcc) for the load and the upstream")
    folder = BUILD / "load"
    sources = [SHARED / name for name in ("upstream.c", "load.c", "gen.py")]

    def build() -> None:
        for name in ("upstream", "load"):
            _run([compiler, "-O2", "-w", "-o", str(folder / name), str(SHARED / f"{name}.c")])
        _run([sys.executable, str(SHARED / "gen.py"), str(folder / "canned")])

    _once(folder, sources, build, allowed=True)  # compiling needs no network
    return folder


def node_peers(*, allowed: bool) -> Path:
    """The ``node_modules`` with llm-tool-capability."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise UnavailableError("node and npm are not installed")
    folder = BUILD / "node"
    recipe = [PEERS / name for name in ("package.json", "package-lock.json", ".npmrc")]

    def build() -> None:
        for source in recipe:
            shutil.copy(source, folder)
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder)

    _once(folder, recipe, build, allowed=allowed)
    return folder / "node_modules"


def environment(name: str, *, allowed: bool) -> Path:
    """The ``bin`` folder of a virtual environment with a Python peer alone, as ``peers/NAME.txt`` pins it."""
    folder = BUILD / name
    recipe = [PEERS / f"{name}.txt"]

    def build() -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(recipe[0])])

    _once(folder, recipe, build, allowed=allowed)
    return folder / "bin"


def pinned(name: str) -> str:
    """The version of a Python peer that its file of pins names."""
    pins = (PEERS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return next(pin.removeprefix(f"{name}==") for pin in pins if pin.startswith(f"{name}=="))


def _once(folder: Path, recipe: Sequence[Path], build: Callable[[], None], *, allowed: bool) -> None:
    """Build ``folder`` from nothing unless its stamp says that this recipe is already there."""
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in recipe)).hexdigest()
    stamp = folder / ".recipe"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if not allowed:
        raise UnavailableError("not installed (--no-install)")
    say(f"installing {folder.name} into {folder.relative_to(BUILD.parent.parent)} ...")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build()
    stamp.write_text(wanted)


def _run(argv: Sequence[str], *, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"`{' '.join(argv[:3])}` did not end within {_FETCH_LIMIT:.0f} s") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[-400:]
        raise UnavailableError(f"`{' '.join(argv[:3])}` failed: {words}")
