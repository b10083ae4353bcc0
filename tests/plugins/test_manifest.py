"""``plugin.toml``: its fields, its errors, the plugin's class, and the plugin's own sections."""

from __future__ import annotations

import os
import sys

import pytest

from patchbay.errors import ConfigurationError
from patchbay.plugins import NekoPluginBase, PluginConfig, PluginError
from patchbay.plugins.manifest import load_class, read_manifest

WHOLE = """
[plugin]
id = "weather"
name = "Weather"
entry = "main:WeatherPlugin"
description = "Tells the weather."
version = "1.2"
keywords = ["sky"]

[plugin.author]
name = "A. Nonymous"

[plugin_runtime]
enabled = false
auto_start = false
timeout = 20
startup_failure = "fail"

[weather]
units = "C"
since = 2026-01-02
"""


def manifest(folder, text):
    (folder / "plugin.toml").write_text(text, encoding="utf-8")
    return read_manifest(folder)


def test_every_manifest_field_is_read(tmp_path):
    read = manifest(tmp_path, WHOLE)
    assert ("weather", "Weather", "main:WeatherPlugin", "1.2") == (read.id, read.name, read.entry, read.version)
    assert (False, False, 20.0, "fail") == (read.enabled, read.auto_start, read.startup_timeout, read.startup_failure)
    assert ["weather"] == list(read.config)
    assert "A. Nonymous" == read.about["author"]["name"]


def test_missing_manifest_fields_have_defaults(tmp_path):
    folder = tmp_path / "clock"
    folder.mkdir()
    read = manifest(folder, '[plugin]\nentry = "main:Clock"')
    assert ("clock", "clock", True, True, 10.0, "warn") == (
        read.id,
        read.name,
        read.enabled,
        read.auto_start,
        read.startup_timeout,
        read.startup_failure,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[plugin", "plugin.toml"),
        ("a = " + "[" * 20_000, "plugin.toml"),
        ("", "plugin.entry must be 'module:Class'"),
        ('[plugin]\nid = ".."\nentry = "m:C"', "plugin.id must not be '..'"),
        ('[plugin]\nentry = "main"', "plugin.entry must be"),
        ('[plugin]\nentry = "main:"', "plugin.entry must be"),
        ("[plugin]\nentry = 5", "entry must be a string"),
        ('plugin = "x"', "plugin must be an object"),
        ('[plugin]\nid = "a b"\nentry = "m:C"', "plugin.id must be"),
        ('[plugin]\nentry = "m:C"\n[plugin_runtime]\ntimeout = 301', "timeout must be a number"),
        ('[plugin]\nentry = "m:C"\n[plugin_runtime]\ntimeout = nan', "timeout must be a number"),
        ('[plugin]\nentry = "m:C"\n[plugin_runtime]\nenabled = "yes"', "enabled must be true or false"),
        (
            '[plugin]\nentry = "m:C"\n[plugin_runtime]\nstartup_failure = "cry"',
            "startup_failure must be one of warn, fail, ignore",
        ),
    ],
)
def test_invalid_manifest_is_refused_with_file_and_field(tmp_path, text, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        manifest(tmp_path, text)
    assert "plugin.toml" in str(caught.value)


def test_folder_without_a_manifest_is_not_a_plugin(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path)


def test_config_is_read_by_section_and_by_path():
    config = PluginConfig({"weather": {"units": "secret", "deep": {"er": 1}}, "a.b": 2})
    assert "secret" == config["weather"]["units"] == config["weather.units"]
    assert 1 == config["weather.deep.er"]
    assert 2 == config["a.b"]
    assert "none" == config.get("weather.missing.part", "none")
    assert "weather.units" in config
    assert "nothing" not in config
    with pytest.raises(KeyError, match=r"weather\.missing"):
        config["weather.missing"]
    assert ["weather", "a.b"] == list(config)
    assert "secret" not in repr(config)


def test_config_is_a_view_and_a_snapshot_is_not():
    config = PluginConfig({"list": [1]})
    taken = config.snapshot()
    taken["list"].append(2)
    assert [1] == config["list"]
    config.replace({"list": [3]})
    assert ([3], [1, 2]) == (config["list"], taken["list"])


PLUGIN = "from patchbay.plugins import NekoPluginBase\nimport {helper}\nclass P(NekoPluginBase):\n    class Q(NekoPluginBase): ...\nother = 5\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A plugin's folder with names of its own: what a test imports stays imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    name = f"plugin_{abs(hash(str(tmp_path)))}"
    made = tmp_path / name
    made.mkdir()
    (made / f"{name}_helper.py").write_text("")
    (made / f"{name}_main.py").write_text(PLUGIN.format(helper=f"{name}_helper"))
    return made


def test_the_class_is_found_in_the_folder_with_its_neighbours(folder):
    assert "P" == load_class(f"{folder.name}_main:P", folder).__name__
    assert "Q" == load_class(f"{folder.name}_main:P.Q", folder).__name__


def test_edit_within_a_second_of_equal_size_is_imported(folder, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    helper = folder / f"{folder.name}_helper.py"
    for version in (22, 23):
        helper.write_text(f"VERSION = {version}\n")
        os.utime(helper, (1_000_000_000, 1_000_000_000))
        load_class(f"{folder.name}_main:P", folder)
        assert version == sys.modules[helper.stem].VERSION
        for name in (helper.stem, f"{folder.name}_main"):
            del sys.modules[name]


def test_package_class_may_be_named_by_its_full_path(folder):
    (folder / "__init__.py").write_text("from patchbay.plugins import PluginBase\nclass P(PluginBase): ...\n")
    (folder / "inner.py").write_text("from . import P\n")
    assert issubclass(load_class(f"plugin.plugins.{folder.name}:P", folder), NekoPluginBase)
    assert issubclass(load_class(f"plugin.plugins.{folder.name}.inner:P", folder), NekoPluginBase)


@pytest.mark.parametrize(
    ("name", "words"), [("other", "no class 'other'"), ("Missing", "no class 'Missing'"), ("P.X", "no class")]
)
def test_plugin_entry_that_is_not_a_class_is_rejected(folder, name, words):
    with pytest.raises(PluginError, match=words):
        load_class(f"{folder.name}_main:{name}", folder)


def test_class_of_another_type_is_refused(folder):
    (folder / f"{folder.name}_else.py").write_text("class P: ...\n")
    with pytest.raises(PluginError, match="must extend NekoPluginBase"):
        load_class(f"{folder.name}_else:P", folder)


def test_a_module_that_another_one_hides_is_refused_and_not_mixed_up(folder):
    (folder / "json.py").write_text(PLUGIN.format(helper="os"))
    with pytest.raises(PluginError, match="Rename it"):
        load_class("json:P", folder)


def test_without_a_folder_the_import_path_is_used():
    with pytest.raises(PluginError, match="must extend"):
        load_class("json:JSONDecoder", None)
    with pytest.raises(ModuleNotFoundError):
        load_class("no_such_module:P", None)
