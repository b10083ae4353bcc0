"""Run the tests on every supported Python that is installed, each in a virtual environment of its own below .build/matrix.

    python scripts/matrix.py                          the whole suite on each version
    python scripts/matrix.py --newest tests/executor  one folder, on the newest version alone

The versions are those of pyproject.toml's classifiers, searched on the PATH and among pyenv's. Exit status 1 where tests fail;
0 also where no version is found, with a message.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / ".build" / "matrix"
VERSION = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def interpreters() -> dict[str, Path]:
    """Find the supported versions that start here, oldest first."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = {}
    for version in VERSION.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8")):
        on_path = shutil.which(f"python{version}")
        candidates = [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
        # A shim of pyenv is on the PATH also for a version that is not active, and fails then.
        working = (each for each in candidates if subprocess.call([each, "--version"], stdout=DEVNULL, stderr=DEVNULL) == 0)
        if (python := next(working, None)) is not None:
            found[version] = python
    return found


def prepare(version: str, python: Path) -> Path:
    """Install the locked packages and this project for one version, unless that is done. Returns the environment's Python."""
    folder = BUILD / version
    ready = folder / ".installed"
    inside = folder / "bin" / "python"
    sources = [ROOT / "requirements.lock", ROOT / "pyproject.toml"]
    if ready.exists() and all(ready.stat().st_mtime > source.stat().st_mtime for source in sources):
        return inside
    print(f"Python {version}: installing from requirements.lock into {folder.relative_to(ROOT)} (once)", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    pip = [inside, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", ROOT / "requirements.lock"], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT], check=True)
    ready.touch()
    return inside


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--newest", action="store_true", help="only the newest version, and none if that is the Python of .venv")
    parser.add_argument("--workers", default="4", help="processes of pytest (default 4)")
    parser.add_argument("tests", nargs="*", help="folders and files (default: the whole suite)")
    options = parser.parse_args()
    own = "{}.{}".format(*sys.version_info)
    versions = interpreters()
    if options.newest:
        versions = {version: python for version, python in list(versions.items())[-1:] if version != own}
    if not versions:
        print(f"no supported Python but {own} is installed: nothing to run")
    failed = []
    for version, python in versions.items():
        inside = prepare(version, python)
        print(f"Python {version}", flush=True)
        if subprocess.run([inside, "-m", "pytest", "-n", options.workers, *options.tests], cwd=ROOT, check=False).returncode != 0:
            failed.append(version)
    if failed:
        print(f"tests fail on Python {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
