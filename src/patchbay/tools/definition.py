"""Tools given as data with a handler in the same process: the seeds' ``ToolDefinition``.

What lives here: the form with one handler that takes the arguments as one dict. Tools of other processes are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.tools.base import Tool, checked_schema
from patchbay.tools.context import ToolContext
from patchbay.tools.envelope import is_envelope, open_envelope
from patchbay.tools.invoke import invoke, is_async
from patchbay.tools.results import well_formed


class ToolDefinition(Tool):
    """A tool of a name, a description, a JSON Schema and a handler that takes all arguments as one dict.

    The handler may be sync (it then runs in a thread) or async. ``metadata`` is the caller's own; ``metadata["source"]`` says who
    the tool is from, ``metadata["annotations"]`` what it says of itself. Raises ConfigurationError where there is no handler,
    since such a tool lives elsewhere and cannot be called here, and where no model could be told of it: parameters that are no
    JSON, half a character.
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        handler: Callable[[dict[str, Any]], Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        about = dict(metadata or {})
        super().__init__(name, description, parameters=parameters, timeout=timeout, annotations=about.get("annotations"))
        if not callable(handler):
            raise ConfigurationError(f"Tool {name!r} needs handler=, a function that takes the arguments as one dict.")
        told = f"{name}{description}{checked_schema(self.parameters, f'tool {name!r}')}"
        if well_formed(told) != told:
            raise ConfigurationError(f"Tool {name!r} has half a character (a lone surrogate) in what it says of itself.")
        self.handler = handler
        self.metadata = about
        self.source = str(about.get("source") or "")
        self.interruptible = is_async(handler)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:  # noqa: ARG002  (the handler takes one dict)
        """Call the handler with the arguments. It may give an envelope (``patchbay.tools.envelope``)."""
        value = await invoke(self.handler, (arguments,), {}, in_thread=not self.interruptible)
        return open_envelope(value, tool_name=self.name) if is_envelope(value) else value
