"""Hooks from a configuration file: PicoClaw's keys, in JSON, YAML or TOML.

configured = await mount_configured(manager, read_hooks_config("patchbay.json"))
"""

from __future__ import annotations

from patchbay._config import read_config
from patchbay.hooks.config.mounting import BuiltinFactory, ConfiguredHooks, MountedHook, mount_configured
from patchbay.hooks.config.settings import (
    BuiltinSpec,
    HooksConfig,
    ProcessSettings,
    parse_hooks_config,
    read_hooks_config,
    read_server_config,
)

__all__ = [
    "BuiltinFactory",
    "BuiltinSpec",
    "ConfiguredHooks",
    "HooksConfig",
    "MountedHook",
    "ProcessSettings",
    "mount_configured",
    "parse_hooks_config",
    "read_config",
    "read_hooks_config",
    "read_server_config",
]
