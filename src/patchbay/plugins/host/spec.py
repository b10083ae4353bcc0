"""Which plugins there are: found in a folder, or named by ``module:Class``.

What lives here: a plugin as the host starts it. What does not: reading one ``plugin.toml`` (``plugins.manifest``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from patchbay.errors import ConfigurationError
from patchbay.plugins.manifest import FILE_NAME, read_manifest
from patchbay.plugins.sdk.llm_tool import check_name


@dataclass(frozen=True)
class PluginSpec:
    """What is started: ``entry`` is ``module:Class`` in ``folder`` (None: on the import path).

    ``has_manifest``: it was read from the folder's ``plugin.toml``, and is read there anew; the folder of a class that was named
    may have one too, which is not about it.
    """

    id: str
    entry: str
    folder: Path | None = None
    startup_timeout: float = 10.0
    startup_failure: Literal["warn", "fail", "ignore"] = "warn"
    auto_start: bool = True
    description: str = ""
    version: str = ""
    has_manifest: bool = False


@dataclass(frozen=True)
class Found:
    """What is in a folder: plugins in the order of their ids, and for each folder that cannot be one, why."""

    specs: tuple[PluginSpec, ...]
    problems: tuple[str, ...] = ()


def read_spec(folder: Path) -> PluginSpec | None:
    """Read one plugin's folder; None where it is not enabled. Raises ConfigurationError, FileNotFoundError."""
    manifest = read_manifest(folder)
    if not manifest.enabled:
        return None
    return PluginSpec(
        id=manifest.id,
        entry=manifest.entry,
        folder=folder.resolve(),
        startup_timeout=manifest.startup_timeout,
        startup_failure=manifest.startup_failure,
        auto_start=manifest.auto_start,
        description=manifest.description,
        version=manifest.version,
        has_manifest=True,
    )


def find_plugins(folder: Path) -> Found:
    """Find the plugins of a folder: it is one itself, or each folder in it with a ``plugin.toml`` is. Does not raise.

    One bad ``plugin.toml`` does not keep the others from running; of two plugins with one id the first by name is taken.
    """
    if not folder.is_dir():
        return Found((), (f"{folder} is no folder.",))
    folders = [folder] if (folder / FILE_NAME).is_file() else sorted(each.parent for each in folder.glob(f"*/{FILE_NAME}"))
    specs: dict[str, PluginSpec] = {}
    problems: list[str] = []
    for each in folders:
        try:
            spec = read_spec(each)
        except (ConfigurationError, OSError) as error:
            problems.append(str(error))
            continue
        if spec is None:
            continue
        if (other := specs.get(spec.id)) is not None:
            problems.append(f"{each}: there is a plugin {spec.id!r} already, in {other.folder}.")
        else:
            specs[spec.id] = spec
    return Found(tuple(specs[key] for key in sorted(specs)), tuple(problems))


def spec_of(target: str, *, beside: Path) -> PluginSpec:
    """Return the plugin ``module:Class``: of a file in the folder ``beside``, else on the import path. Raises ConfigurationError.

    Its id is the last part of the module's name.
    """
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConfigurationError(f"{target!r} is neither a folder nor module:Class.")
    plugin_id = module.rpartition(".")[2]
    check_name(plugin_id, what="The plugin's id")
    top = module.partition(".")[0]
    is_here = (beside / f"{top}.py").is_file() or (beside / top).is_dir()
    return PluginSpec(id=plugin_id, entry=target, folder=beside.resolve() if is_here else None)
