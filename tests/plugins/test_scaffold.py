"""``patchbay plugins new``: its files work unchanged, alone and beside others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from patchbay.errors import ConfigurationError
from patchbay.plugins.manifest import load_class, read_manifest
from patchbay.plugins.scaffold import write_scaffold

NAMES = ["my-weather", "plugin", "a.b", "json", "Class", "x" * 64]


def test_tests_of_scaffolded_plugins_pass_alone_and_together(tmp_path):
    files = {name: [path.name for path in write_scaffold(tmp_path / name)] for name in NAMES}
    assert ["plugin.toml", "my_weather_plugin.py", "test_my_weather.py"] == files["my-weather"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert 0 == done.returncode, done.stdout
    assert f"{2 * len(NAMES)} passed" in done.stdout


def test_a_new_plugin_is_one_that_the_host_finds(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_scaffold(tmp_path / "my-weather")
    manifest = read_manifest(tmp_path / "my-weather")
    assert ("my-weather", "my_weather_plugin:MyWeatherPlugin") == (manifest.id, manifest.entry)
    assert "MyWeatherPlugin" == load_class(manifest.entry, manifest.folder).__name__
    del sys.modules["my_weather_plugin"]


@pytest.mark.parametrize("name", ["7up", "a b", "-", "x" * 65, "wetter-für-morgen"])
def test_a_new_plugin_needs_a_name_that_works_everywhere(tmp_path, name):
    with pytest.raises(ConfigurationError):
        write_scaffold(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_new_plugin_overwrites_nothing(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(ConfigurationError, match="is there already"):
        write_scaffold(tmp_path / "mine")
    assert Path("file") == Path(*[each.name for each in (tmp_path / "mine").iterdir()])
