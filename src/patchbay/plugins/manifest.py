"""``plugin.toml``: reading it, finding plugins in folders, and importing a plugin's class."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, Literal

from patchbay._config import Table, parse_config, wrong
from patchbay.errors import ConfigurationError
from patchbay.plugins.errors import PluginError
from patchbay.plugins.protocol import MAX_TIMEOUT
from patchbay.plugins.sdk import NekoPluginBase
from patchbay.plugins.tool_table import check_name

FILE_NAME: Final = "plugin.toml"

_HOSTS: Final = frozenset({"plugin", "plugin_runtime"})
_POLICIES: Final = ("warn", "fail", "ignore")

DEFAULT_STARTUP: Final = 10.0
"""Default of ``startup_timeout``, in seconds."""


@dataclass(frozen=True)
class PluginSpec:
    """A plugin as the host starts it: ``entry`` is ``module:Class`` in ``folder`` (None: on the import path).

    ``startup_timeout`` (seconds) is ``timeout`` in ``[plugin_runtime]``. ``config`` has the plugin's own sections, ``about`` all
    of ``[plugin]``; both, and ``name``, may differ between equal specs. ``has_manifest``: it was read from the folder's
    ``plugin.toml``, and is read there again at a reload.
    """

    id: str
    entry: str
    folder: Path | None = None
    startup_timeout: float = DEFAULT_STARTUP
    startup_failure: Literal["warn", "fail", "ignore"] = "warn"
    auto_start: bool = True
    description: str = ""
    version: str = ""
    has_manifest: bool = False
    enabled: bool = True
    name: str = field(default="", compare=False)
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Found:
    """The plugins of a folder in the order of their ids, and the problems of folders that cannot be plugins."""

    specs: tuple[PluginSpec, ...]
    problems: tuple[str, ...] = ()


def read_manifest(folder: Path) -> PluginSpec:
    """Read the ``plugin.toml`` of a folder. Raises ConfigurationError, which names the file and the field, FileNotFoundError."""
    path = folder / FILE_NAME
    whole = Table(parse_config(path, path.read_bytes()), "")
    try:
        return _read(whole, folder)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _read(whole: Table, folder: Path) -> PluginSpec:
    about, runtime = whole.table("plugin"), whole.table("plugin_runtime")
    plugin_id = about.text("id") or folder.resolve().name
    check_name(plugin_id, what="plugin.id")
    if plugin_id in (".", ".."):
        raise ConfigurationError(f"plugin.id must not be {plugin_id!r}: in an address it would stand for a folder.")
    entry = about.text("entry")
    if not all(entry.partition(":")):
        raise ConfigurationError(f"plugin.entry must be 'module:Class', not {entry!r}.")
    timeout = runtime.get("timeout")
    if timeout is None:
        timeout = DEFAULT_STARTUP
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT:
        raise wrong(runtime.at("timeout"), f"a number of seconds above 0, at most {MAX_TIMEOUT:g}", timeout)
    return PluginSpec(
        id=plugin_id,
        entry=entry,
        folder=folder,
        name=about.text("name") or plugin_id,
        description=about.text("description"),
        version=about.text("version"),
        enabled=runtime.flag("enabled", default=True),
        auto_start=runtime.flag("auto_start", default=True),
        startup_timeout=float(timeout),
        startup_failure=runtime.one_of("startup_failure", _POLICIES, "warn"),
        config={key: value for key, value in whole.values.items() if key not in _HOSTS},
        about=about.values,
        has_manifest=True,
    )


def load_class(entry: str, folder: Path | None) -> type[NekoPluginBase]:
    """Import the class of ``module:Class``: from ``folder``, or from the import path alone. Raises PluginError.

    The folder stays first on the import path for later imports of the plugin. Errors of the module itself are passed on.
    """
    module_name, _, class_name = entry.partition(":")
    module = _module(module_name, folder)
    found: Any = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise PluginError(f"There is no class {class_name!r} in {module_name!r}.")
    if not issubclass(found, NekoPluginBase):
        raise PluginError(f"{class_name!r} is not a plugin: it must extend NekoPluginBase (PluginBase).")
    return found


def _module(name: str, folder: Path | None) -> ModuleType:
    if folder is None:
        return importlib.import_module(name)
    folder = folder.resolve()
    parent, target = folder, name
    if not _has(folder, name.partition(".")[0]) and (folder / "__init__.py").is_file():
        # Entries of N.E.K.O's plugins name the whole path of the package that their folder is.
        inside = name.split(".")
        if folder.name in inside:
            target = ".".join(inside[inside.index(folder.name) :])
        parent = folder.parent
    sys.path.insert(0, str(parent))
    _compile_always(parent)
    module = importlib.import_module(target)
    if not Path(getattr(module, "__file__", None) or "").is_relative_to(parent):
        raise PluginError(f"The module {name!r} of {folder} cannot be imported: another one of this name comes first. Rename it.")
    return module


class _UncachedLoader(SourceFileLoader):
    """Compiles the source at each import, and neither reads nor writes ``__pycache__``.

    A cached file counts as current where the source has its size and its second of change, so a reload right after an edit
    would run the code from before it.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _compile_always(folder: Path) -> None:
    """Import the modules of ``folder`` without cached bytecode from now on, except for packages installed in it."""

    def finder(path: str) -> FileFinder:
        if not Path(path).is_relative_to(folder) or "site-packages" in path:
            raise ImportError(f"{path} is not the plugin's.")
        return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_UncachedLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.pop(str(folder), None)


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def read_spec(folder: Path) -> PluginSpec | None:
    """Read a plugin's folder; None where it is not enabled. Raises ConfigurationError, FileNotFoundError."""
    spec = read_manifest(folder.resolve())
    return spec if spec.enabled else None


def find_plugins(folder: Path) -> Found:
    """Find the plugins of a folder: the folder itself, or each folder in it with a ``plugin.toml``. Does not raise.

    A bad ``plugin.toml`` does not affect the others; of two plugins with one id the first by name is used.
    """
    if not folder.is_dir():
        return Found((), (f"{folder} is not a folder.",))
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
    """Return the spec of ``module:Class``: a file in the folder ``beside``, else on the import path. Raises ConfigurationError.

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
