"""``plugin.toml``: reading it, finding plugins in folders, and importing a plugin's class."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from patchbay.errors import ConfigurationError
from patchbay.plugins.errors import PluginError
from patchbay.plugins.protocol import MAX_TIMEOUT
from patchbay.plugins.sdk import NekoPluginBase, check_name

FILE_NAME: Final = "plugin.toml"

_HOSTS: Final = frozenset({"plugin", "plugin_runtime"})
_POLICIES: Final = ("warn", "fail", "ignore")


@dataclass(frozen=True)
class PluginManifest:
    """What a ``plugin.toml`` says. ``folder`` is where it is, ``config`` the sections that are the plugin's own.

    ``startup_timeout`` (seconds) is ``timeout`` in ``[plugin_runtime]``; ``about`` is all of ``[plugin]``.
    """

    id: str
    entry: str
    folder: Path
    name: str = ""
    description: str = ""
    version: str = ""
    enabled: bool = True
    auto_start: bool = True
    startup_timeout: float = 10.0
    startup_failure: Literal["warn", "fail", "ignore"] = "warn"
    config: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


def read_manifest(folder: Path) -> PluginManifest:
    """Read the ``plugin.toml`` of a folder. Raises ConfigurationError naming the file and the field, FileNotFoundError."""
    path = folder / FILE_NAME
    try:
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also where it is not UTF-8, or nested without end
        raise ConfigurationError(f"{path}: {error}") from None
    fields = _Fields(path)
    about = fields.table(whole, "plugin")
    runtime = fields.table(whole, "plugin_runtime")
    plugin_id = fields.text(about, "id") or folder.resolve().name
    try:
        check_name(plugin_id, what="plugin.id")
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if plugin_id in (".", ".."):
        raise ConfigurationError(f"{path}: plugin.id must not be {plugin_id!r}: in an address it would stand for a folder.")
    entry = fields.text(about, "entry")
    if not all(entry.partition(":")):
        raise ConfigurationError(f"{path}: plugin.entry must be 'module:Class', not {entry!r}.")
    policy: Any = fields.text(runtime, "startup_failure", "warn")
    if policy not in _POLICIES:
        raise ConfigurationError(f"{path}: plugin_runtime.startup_failure must be one of {', '.join(_POLICIES)}; not {policy!r}.")
    return PluginManifest(
        id=plugin_id,
        entry=entry,
        folder=folder,
        name=fields.text(about, "name") or plugin_id,
        description=fields.text(about, "description"),
        version=fields.text(about, "version"),
        enabled=fields.truth(runtime, "enabled"),
        auto_start=fields.truth(runtime, "auto_start"),
        startup_timeout=fields.seconds(runtime, "timeout", 10.0),
        startup_failure=policy,
        config={key: value for key, value in whole.items() if key not in _HOSTS},
        about=about,
    )


def load_class(entry: str, folder: Path | None) -> type[NekoPluginBase]:
    """Import the class of ``module:Class``: from ``folder``, or from the import path alone. Raises PluginError.

    The folder is put first on the import path, and stays there for what the plugin imports later. What the module itself raises
    is raised here.
    """
    module_name, _, class_name = entry.partition(":")
    module = _module(module_name, folder)
    found: Any = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise PluginError(f"There is no class {class_name!r} in {module_name!r}.")
    if not issubclass(found, NekoPluginBase):
        raise PluginError(f"{class_name!r} is no plugin: it must extend NekoPluginBase (PluginBase).")
    return found


def _module(name: str, folder: Path | None) -> ModuleType:
    if folder is None:
        return importlib.import_module(name)
    folder = folder.resolve()
    parent, target = folder, name
    if not _has(folder, name.partition(".")[0]) and (folder / "__init__.py").is_file():
        # As the seeds' plugins are named: by the whole path of the package that their folder is.
        inside = name.split(".")
        if folder.name in inside:
            target = ".".join(inside[inside.index(folder.name) :])
        parent = folder.parent
    sys.path.insert(0, str(parent))
    module = importlib.import_module(target)
    if not Path(getattr(module, "__file__", None) or "").is_relative_to(parent):
        raise PluginError(f"The module {name!r} of {folder} cannot be imported: another one of this name comes first. Rename it.")
    return module


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


class _Fields:
    """Reads fields of one file, and names them where they are wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def table(self, tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = tables.get(key, {})
        if isinstance(value, Mapping):
            return value
        raise self._wrong(key, "a table", value)

    def text(self, table: Mapping[str, Any], key: str, default: str = "") -> str:
        value = table.get(key, default)
        if isinstance(value, str):
            return value
        raise self._wrong(key, "a string", value)

    def truth(self, table: Mapping[str, Any], key: str) -> bool:
        value = table.get(key, True)
        if isinstance(value, bool):
            return value
        raise self._wrong(key, "true or false", value)

    def seconds(self, table: Mapping[str, Any], key: str, default: float) -> float:
        value = table.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_TIMEOUT:
            return float(value)
        raise self._wrong(key, f"a number of seconds above 0, at most {MAX_TIMEOUT:g}", value)

    def _wrong(self, key: str, what: str, value: Any) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: {key} must be {what}, not {value!r}.")


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
