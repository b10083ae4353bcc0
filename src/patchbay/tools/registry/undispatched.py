"""What stands for a tool of another process in a registry that nobody told how to call it."""

from __future__ import annotations

from typing import Any

from patchbay.errors import ToolFailed
from patchbay.tools.base import Tool
from patchbay.tools.context import ToolContext
from patchbay.tools.registry.registration import Registration


class Undispatched(Tool):
    """Answers every call with an error."""

    def __init__(self, registration: Registration) -> None:
        super().__init__(registration.name, registration.description, parameters=registration.parameters)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:  # noqa: ARG002  (there is nobody to give them to)
        """Raise ToolFailed."""
        raise ToolFailed(f"tool {self.name!r} is remote but no dispatcher is bound", tool_name=self.name)
