"""Tools written as a class with a declaration of their own: the seed's ``BaseTool``.

What lives here: the two methods that such a class writes, joined to the one that every tool has. A new kind of tool inside
Patchbay extends ``Tool`` itself.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.tools.base import Tool
from patchbay.tools.context import ToolContext
from patchbay.types import EMPTY_PARAMETERS, ToolSpec


class BaseTool(Tool):
    """A tool that declares itself: write ``get_declaration`` and ``run_async``.

    ``timeout`` is in seconds, None for no limit of its own. The declaration is asked for once; arguments are checked against
    its ``parameters`` before ``run_async`` is called.
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        timeout: float | None = None,
        *,
        sequential: bool = False,
        max_parallel: int | None = None,
        strict: bool = False,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            name,
            description,
            timeout=timeout,
            sequential=sequential,
            max_parallel=max_parallel,
            strict=strict,
            annotations=annotations,
        )

    @abstractmethod
    def get_declaration(self) -> dict[str, Any] | None:
        """Return ``{"name", "description", "parameters"}``, the last a JSON Schema; None: no model is told of the tool."""

    @abstractmethod
    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Carry out one call. ``args`` have been validated; whatever is raised becomes an error result."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Call ``run_async``, under the names that the seed gives its parameters."""
        result: Any = self.run_async(args=arguments, tool_context=context)
        # A subclass may have written it as a plain function.
        return await result if inspect.isawaitable(result) else result

    @property
    def offered(self) -> bool:
        """Whether the tool declares itself."""
        return self._declaration is not None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The declaration's JSON Schema."""
        return (self._declaration or {}).get("parameters") or EMPTY_PARAMETERS

    @cached_property
    def spec(self) -> ToolSpec:
        """What a model is told of the tool; made once. Its name is the tool's, whatever the declaration says."""
        # Not by self.description: that is what a declaration is usually made of.
        description = (self._declaration or {}).get("description") or self.description
        return ToolSpec(self.name, description, self.parameters, True if self.strict else None)

    @cached_property
    def _declaration(self) -> Mapping[str, Any] | None:
        declaration: Any = self.get_declaration()
        if isinstance(declaration, Mapping) and isinstance(declaration.get("function"), Mapping):
            declaration = declaration["function"]  # as OpenAI wraps it
        if declaration is None:
            return None
        if not isinstance(declaration, Mapping):
            kind = type(declaration).__name__
            raise ConfigurationError(f"get_declaration of tool {self.name!r} must return a dict, not {kind}.")
        if not isinstance(declaration.get("parameters") or {}, Mapping):
            raise ConfigurationError(f"The declaration of tool {self.name!r} has parameters that are no JSON Schema object.")
        return declaration
