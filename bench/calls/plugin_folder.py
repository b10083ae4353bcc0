"""The plugins that are measured, as folders on the disk."""

from __future__ import annotations

from pathlib import Path

from bench.calls import cases

ID = "bench"

MANIFEST = """\
[plugin]
id = "{id}"
entry = "main:Bench"
"""

_ECHO = '''\
from patchbay.plugins import PluginBase, llm_tool, plugin


@plugin
class Bench(PluginBase):
    @llm_tool
    async def echo(self, index: int, text: str, limit: float = 1.0):
        """Say the words again."""
        return f"{index}: {text}"
'''

_MANY_BEGIN = """\
from patchbay.plugins import PluginBase, llm_tool, plugin


@plugin
class Bench(PluginBase):
"""

_MANY_EACH = '''\
    @llm_tool({options})
    async def {name}(self, index: int, text: str, limit: float = 1.0):
        """Say the words again."""
        return f"{{index}}: {{text}}"

'''

DECLARED, INFERRED = "declared", "inferred"
KINDS = (DECLARED, INFERRED)
"""Tools that tell their parameters, and those whose signatures are read, for which pydantic is loaded."""


def write(folder: Path) -> Path:
    """Write the plugin with the tool of all rows into a folder of its own in ``folder``, and return ``folder``."""
    _write(folder / ID, ID, _ECHO)
    return folder


def write_many(folder: Path, kind: str, *, plugins: int, tools: int) -> Path:
    """Write ``plugins`` plugins of ``tools`` tools of a kind each, all with names of their own, and return ``folder``."""
    options = f"parameters={cases.PARAMETERS!r}" if kind == DECLARED else ""
    for number in range(plugins):
        names = [f"tool_{number}_{each}" for each in range(tools)]
        source = _MANY_BEGIN + "".join(_MANY_EACH.format(name=name, options=options) for name in names)
        _write(folder / f"plugin_{number}", f"plugin_{number}", source)
    return folder


def _write(folder: Path, plugin_id: str, source: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plugin.toml").write_text(MANIFEST.format(id=plugin_id), encoding="utf-8")
    (folder / "main.py").write_text(source, encoding="utf-8")
