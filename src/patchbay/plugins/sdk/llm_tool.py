"""``@llm_tool``: the methods of a plugin that a model may call.

What lives here: the decorator, the rules for its options, and finding what it marks. What does not: the tool that is made of a
method (``plugin_tool``), and which ones are registered (``tool_table``).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, overload

from patchbay.errors import ConfigurationError
from patchbay.plugins.deadlines import DEFAULT_TIMEOUT, MAX_TIMEOUT
from patchbay.plugins.sdk.lifecycle import functions_of
from patchbay.tools.annotations import checked_annotations

_MARK: Final = "__patchbay_llm_tool__"
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class LlmToolMeta:
    """What a tool is registered with. ``parameters`` None: what the handler's signature says. ``timeout`` is in seconds.

    ``annotations`` are what the tool says of itself, by our names. Raises TypeError for what is of the wrong type,
    ConfigurationError (a ValueError) for a name that cannot stand in a URL, for a timeout that is not above 0 and at most 300,
    and for annotations that are no booleans.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    timeout: float = DEFAULT_TIMEOUT
    role: str | None = None
    annotations: Mapping[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.description, str):
            raise TypeError(f"description of tool {self.name!r} must be a str, not {type(self.description).__name__}.")
        if self.parameters is not None and not isinstance(self.parameters, dict):
            kind = type(self.parameters).__name__
            raise TypeError(f"parameters of tool {self.name!r} must be a dict (a JSON Schema), not {kind}.")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float):
            raise TypeError(f"timeout of tool {self.name!r} must be a number of seconds, not {type(self.timeout).__name__}.")
        if not math.isfinite(self.timeout) or not 0 < self.timeout <= MAX_TIMEOUT:
            raise ConfigurationError(
                f"timeout of tool {self.name!r} must be above 0 and at most {MAX_TIMEOUT:g} seconds, not {self.timeout!r}."
            )
        if self.role is not None and not isinstance(self.role, str):
            raise TypeError(f"role of tool {self.name!r} must be a str, or None for all; not {type(self.role).__name__}.")
        try:
            object.__setattr__(self, "annotations", checked_annotations(self.annotations))
        except ConfigurationError as error:
            raise ConfigurationError(f"Tool {self.name!r}: {error}.") from None


def check_name(name: str, *, what: str = "A tool's name") -> None:
    """Raise ConfigurationError for a name that cannot stand in a URL's path as it is, TypeError for what is no str."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}.")
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{what} must be 1 to 64 of A-Z, a-z, 0-9, '_', '.', '-'; not {name!r}.")


@overload
def llm_tool(method: F, /) -> F: ...
@overload
def llm_tool(
    *,
    name: str | None = None,
    description: str = "",
    parameters: Mapping[str, Any] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    role: str | None = None,
    annotations: Mapping[str, bool] | None = None,
) -> Callable[[F], F]: ...
def llm_tool(
    method: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str = "",
    parameters: Mapping[str, Any] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    role: str | None = None,
    annotations: Mapping[str, bool] | None = None,
) -> F | Callable[[F], F]:
    """Mark a method, sync or async, that a model may call with keyword arguments.

    ``name`` is the method's where none is given, ``description`` what its docstring says, ``parameters`` (a JSON Schema) what its
    signature says. ``timeout`` is in seconds, at most 300; ``role`` None is for all roles. ``annotations`` are what the tool says
    of itself, for who approves its calls: ``{"destructive": True}``. Raises what LlmToolMeta raises.
    """

    def mark(method: F) -> F:
        target: Any = getattr(method, "__func__", method)
        if not inspect.isroutine(target):
            raise TypeError(f"@llm_tool marks methods, not {type(method).__name__}.")
        meta = LlmToolMeta(
            name=name if name is not None else target.__name__,
            description=description,
            parameters=parameters,
            timeout=timeout,
            role=role or None,
            annotations=annotations or {},
        )
        setattr(target, _MARK, meta)
        return method

    return mark if method is None else mark(method)


def tools_of(plugin_class: type) -> Iterator[tuple[str, LlmToolMeta]]:
    """Yield the names of a class's marked methods, in their order, and what each is registered with."""
    for name, function in functions_of(plugin_class):
        if (meta := getattr(function, _MARK, None)) is not None:
            yield name, meta
