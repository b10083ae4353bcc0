"""What a plugin is given when it is made: who it is, its configuration, its logger.

What lives here: the object. What does not: who fills it in (``runtime``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from patchbay.plugins.messages import Message
from patchbay.plugins.sdk.config import PluginConfig
from patchbay.plugins.sdk.tool_table import ToolTable


class PluginContext:
    """The ``ctx`` of a plugin: ``plugin_id``, ``folder`` (None for one without), ``config``, ``logger``.

    ``tools`` is the table of its tools, ``failures`` what could not be registered when the plugin was made; plugins have methods
    of their own for both.
    """

    def __init__(
        self, plugin_id: str, *, send: Callable[[Message], None], folder: Path | None = None, config: PluginConfig | None = None
    ) -> None:
        self.plugin_id = plugin_id
        self.folder = folder
        self.config = config if config is not None else PluginConfig()
        self.logger = logging.getLogger(f"plugin.{plugin_id}")
        self.tools = ToolTable(plugin_id, send)
        self.failures: list[Exception] = []
        self.is_made = False
        """Whether the plugin's ``__init__`` has called that of NekoPluginBase."""
