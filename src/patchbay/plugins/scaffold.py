"""A new plugin's files: a class, its ``plugin.toml``, and a test that passes.

What lives here: their texts. What does not: the command that asks for them.
"""

from __future__ import annotations

import re
from pathlib import Path

from patchbay.errors import ConfigurationError
from patchbay.plugins.sdk.llm_tool import check_name

_TOML = """\
[plugin]
id = "{id}"
entry = "main:{class_name}"
description = "What it is for."
version = "0.1.0"

[{id_key}]
greeting = "Hello"
"""

_MAIN = '''\
from patchbay.plugins import Err, PluginBase, lifecycle, llm_tool, plugin


@plugin
class {class_name}(PluginBase):
    @lifecycle(id="startup")
    async def startup(self, **_):
        self.logger.info("ready")

    @llm_tool
    async def {tool}(self, *, name: str):
        """Greet somebody.

        :param name: whom to greet
        """
        if not name.strip():
            return Err("nobody was named")
        return f"{{self.config.get('{id}.greeting', 'Hello')}}, {{name}}!"
'''

_TEST = """\
import asyncio
from pathlib import Path

from main import {class_name}
from patchbay.testing import run_plugin


async def call(**arguments):
    async with run_plugin({class_name}, folder=Path(__file__).parent) as plugin:
        return await plugin.call("{tool}", **arguments)


def test_it_greets_by_name():
    assert asyncio.run(call(name="Ada")).output == "Hello, Ada!"


def test_nobody_is_an_error():
    assert asyncio.run(call(name=" ")).error == "nobody was named"
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
    class_name = "".join(word[0].upper() + word[1:] for word in words) + "Plugin"
    tool = "greet_" + "_".join(word.lower() for word in words)
    if "." in plugin_id:
        raise ConfigurationError(
            f"a plugin's name has no '.' here: its section in plugin.toml would be another; not {plugin_id!r}."
        )
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "plugin.toml": _TOML.format(id=plugin_id, id_key=plugin_id, class_name=class_name),
        "main.py": _MAIN.format(id=plugin_id, class_name=class_name, tool=tool),
        f"test_{'_'.join(words).lower()}.py": _TEST.format(class_name=class_name, tool=tool),
    }
    written = []
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written
