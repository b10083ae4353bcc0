"""The files of a new plugin: a class, its ``plugin.toml``, and a test that passes."""

from __future__ import annotations

import re
from pathlib import Path

from patchbay.errors import ConfigurationError
from patchbay.plugins.tool_table import check_name

# File names are different in each plugin, so that the tests of several plugins can run together.

_TOML = """\
[plugin]
id = "{id}"
entry = "{module}:{class_name}"
description = "What it is for."
version = "0.1.0"

[settings]
greeting = "Hello"
"""

_PLUGIN = '''\
from patchbay.plugins import Err, PluginBase, lifecycle, llm_tool, plugin


@plugin
class {class_name}(PluginBase):
    @lifecycle(id="startup")
    async def startup(self, **_):
        self.logger.info("ready")

    @llm_tool
    async def {tool}(self, *, name: str):
        """Greet a person.

        :param name: whom to greet
        """
        if not name.strip():
            return Err("no name was given")
        return f"{{self.config.get('settings.greeting', 'Hello')}}, {{name}}!"
'''

_TEST = """\
import asyncio
from pathlib import Path

from {module} import {class_name}

from patchbay.testing import run_plugin


async def call(**arguments):
    async with run_plugin({class_name}, folder=Path(__file__).parent) as plugin:
        return await plugin.call("{tool}", **arguments)


def test_it_greets_by_name():
    assert asyncio.run(call(name="Ada")).output == "Hello, Ada!"


def test_an_empty_name_is_an_error():
    assert asyncio.run(call(name=" ")).error == "no name was given"
"""


def write_scaffold(folder: Path) -> list[Path]:
    """Write a plugin named as the folder, which must be new or empty, and return its files. Raises ConfigurationError."""
    plugin_id = folder.resolve().name
    check_name(plugin_id, what="The plugin's name")
    words = re.findall(r"[A-Za-z0-9]+", plugin_id)
    if not words or not words[0][0].isalpha():
        raise ConfigurationError(f"a plugin's name begins with a letter: {plugin_id!r} does not.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is there already.")
    stem = "_".join(words).lower()
    named = {
        "id": plugin_id,
        "module": f"{stem}_plugin",
        "class_name": "".join(word[0].upper() + word[1:] for word in words) + "Plugin",
        "tool": f"greet_{stem}"[:64],
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in (("plugin.toml", _TOML), (f"{stem}_plugin.py", _PLUGIN), (f"test_{stem}.py", _TEST)):
        path = folder / name
        path.write_text(text.format(**named), encoding="utf-8")
        written.append(path)
    return written
