"""Python functions and definitions with a handler as tools, and mixed lists of them."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack, overload

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.schema import FunctionSchema
from patchbay.tools.context import ToolContext
from patchbay.tools.envelope import is_envelope, unwrap_tool_response
from patchbay.tools.results import well_formed
from patchbay.tools.threads import invoke, is_async
from patchbay.tools.tool import BaseTool, Tool, ToolOptions, Toolset, Validation, checked_schema, find_facts

CONTEXT_PARAMETER = "tool_context"

_NAMES_CONTEXT = re.compile(r"\bToolContext\b")


class FunctionTool(BaseTool):
    """A Python function that a model may call; calling the tool itself calls the function.

    Name, description and parameters come from the function (its docstring in Sphinx, Google or NumPy style) unless given. A
    parameter named ``tool_context``, or annotated with ToolContext, gets the call's context and is hidden from the model.

    With ``parameters`` (a JSON Schema) arguments are checked against that schema and passed by keyword; a function whose one
    parameter is not among the schema's properties gets them all as one dict, and a second such parameter gets the context.

    Sync functions run in a thread, with the caller's context variables. A thread cannot be interrupted: when its time is up the
    result says so and the thread runs on, its outcome dropped; it may check ``tool_context.cancelled``. A generator is stopped
    between its items.

    ``facts`` (``Tool.facts``) takes the arguments alone, also if the function is a method.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        facts: Callable[[dict[str, Any]], Any] | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        if isinstance(function, classmethod):
            raise TypeError("A classmethod has no class yet: make a tool of the method, as in tool(Shop.open).")
        if not callable(function):
            raise TypeError(f"A tool's handler must be callable, not {type(function).__name__}.")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigurationError(f"parameters of tool {name or function!r} must be a JSON Schema object.")
        super().__init__(name if name is not None else _name_of(function), description or "", **options)
        if facts is not None:
            if not callable(facts):
                raise ConfigurationError(f"facts of tool {self.name!r} must be a function of a call's arguments, not {facts!r}.")
            self.facts = facts
        self.function = function
        self._parameters = parameters
        self._described = description is not None
        self._schema = FunctionSchema(function, is_injected=_is_context)
        if parameters is None:
            self._schema.check_names(self.name)
        if parameters is None and not inspect.isfunction(function):
            _ = self._schema.signature  # a callable without one (max, dict) is rejected now, not at the first request
        self.is_async = is_async(function)
        self.interruptible = self.is_async
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionTool:
        """Bind a tool of a method, as Python binds the method."""
        if instance is None or isinstance(self.function, staticmethod):
            return self
        bound = copy.copy(self)
        for made in ("parameters", "spec", "_binding", "_validator"):
            vars(bound).pop(made, None)
        bound.function = types.MethodType(self.function, instance)
        bound._schema = FunctionSchema(bound.function, is_injected=_is_context)  # noqa: SLF001  (a copy of this)
        functools.update_wrapper(bound, bound.function, updated=())
        return bound

    @property
    def description(self) -> str:
        """The given description, else the prose of the function's docstring."""
        return self._description if self._described else self._schema.docstring.description

    @description.setter
    def description(self, text: str) -> None:
        self._description, self._described = text, True

    def get_declaration(self) -> dict[str, Any]:
        """Return name, description and parameters, as a declaration."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The given schema, else that of the function's signature."""
        return self._parameters if self._parameters is not None else self._schema.json_schema

    def check(self) -> None:
        """Raise ConfigurationError for a schema that is unusable or does not fit the function."""
        if self._parameters is not None:
            super().check()
        _ = self.spec, self._binding

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:
        """Check against the function's annotations, or against the schema if one was given. Raises ToolArgumentsError."""
        if self._parameters is not None:
            return super().validate(raw_arguments, validation)
        if validation is None:
            return self._schema.select(self.name, raw_arguments)
        return self._schema.validate(self.name, raw_arguments)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Call the function; awaitables are awaited, generators are read to their end."""
        args, kwargs = self._binding(arguments, context)
        return await invoke(self.function, args, kwargs, in_thread=not self.is_async)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext | None = None) -> Any:
        """Check ``args``, then call the function; ``{"error": ...}`` for invalid ones. For callers without an executor.

        Raises what the function and its ``facts`` raise.
        """
        try:
            arguments = self.validate(json.dumps(args, ensure_ascii=False, default=str), Validation())
        except ToolArgumentsError as error:
            return {"error": str(error)}
        context = tool_context or ToolContext(call_id="", name=self.name)
        if self.facts is not None:  # the context's facts may be those of a tool that calls this one
            context = context.with_facts(await find_facts(self, dict(arguments)))
        return await self.run(arguments, context)

    @cached_property
    def _binding(self) -> Callable[[dict[str, Any], ToolContext], tuple[tuple[Any, ...], dict[str, Any]]]:
        """The function that turns arguments into those of the Python call."""
        if self._parameters is not None and (whole := self._takes_a_dict(self._parameters)) is not None:
            return lambda arguments, context: ((arguments, context)[:whole], {})
        injected = self._schema.injected
        signature = self._schema.signature
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        is_dispatched = hasattr(self.function, "dispatch") and hasattr(self.function, "registry")  # functools.singledispatch
        if is_dispatched or any(kind in (kind.POSITIONAL_ONLY, kind.VAR_POSITIONAL) for kind in kinds):
            return functools.partial(_bind_in_order, signature, injected)
        if not injected:
            return lambda arguments, _context: ((), arguments)
        return lambda arguments, context: ((), {**arguments, **dict.fromkeys(injected, context)})

    def _takes_a_dict(self, schema: Mapping[str, Any]) -> int | None:
        """The number of positional arguments (the dict, and perhaps the context); None if they are passed by keyword."""
        properties = schema.get("properties") or {}
        accepted = list(self._schema.signature.parameters.values())
        positional = [item for item in accepted if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
        foreign = [item for item in positional if item.name not in properties and item.name not in self._schema.injected]
        # A schema without properties, or a parameter that none of them fills: it takes the whole dict.
        required = [item for item in foreign if item.default is item.empty]
        if positional and positional[0] in required and len(required) <= 2 and len(foreign) == len(required):
            fills_rest = all(item in foreign or item.name in self._schema.injected for item in positional)
            if fills_rest and all(item in positional for item in accepted):
                return len(positional)
        if required and "properties" in schema:
            raise ConfigurationError(
                f"The handler of tool {self.name!r} needs a parameter {required[0].name!r} that its schema does not have."
            )
        return None


class FunctionOptions(ToolOptions, total=False):
    """The options of ``tool`` and FunctionTool; ``name`` and ``description`` replace the function's own."""

    name: str | None
    description: str | None
    parameters: Mapping[str, Any] | None
    facts: Callable[[dict[str, Any]], Any] | None


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(**options: Unpack[FunctionOptions]) -> Callable[[Callable[..., Any]], FunctionTool]: ...
@overload
def tool(*, handler: Callable[..., Any], **options: Unpack[FunctionOptions]) -> FunctionTool: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    handler: Callable[..., Any] | None = None,
    **options: Unpack[FunctionOptions],
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a function: as ``@tool``, as ``@tool(name=..., timeout=...)``, or as ``tool(name=..., handler=...)``.

    ``name`` and ``description`` replace the function's own. ``parameters`` is a JSON Schema to use instead of the function's
    annotations; ``timeout`` is in seconds; all others are as for every Tool. Raises ConfigurationError for an invalid name,
    schema or limit.
    """
    if function is not None and handler is not None:
        raise TypeError("tool() takes a function or handler=, not both.")
    if unknown := options.keys() - FunctionOptions.__annotations__.keys():
        raise TypeError(f"tool() got an unexpected keyword argument {min(unknown)!r}")
    target = function if function is not None else handler
    return (lambda function: FunctionTool(function, **options)) if target is None else FunctionTool(target, **options)


def _bind_in_order(
    signature: inspect.Signature, injected: Sequence[str], arguments: dict[str, Any], context: ToolContext
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bind arguments to a signature with positional-only parameters."""
    rest = {**arguments, **dict.fromkeys(injected, context)}
    args: list[Any] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            args.extend(rest.pop(name, ()))
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and name in rest:
            args.append(rest.pop(name))
    return tuple(args), rest


def _is_context(name: str, annotation: Any) -> bool:
    if name == CONTEXT_PARAMETER:
        return True
    if isinstance(annotation, str):  # unresolvable: imported for type checkers only
        return _NAMES_CONTEXT.search(annotation) is not None
    if typing.get_origin(annotation) in (typing.Annotated, typing.Union, types.UnionType):
        return any(_is_context("", member) for member in typing.get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, ToolContext)


def _name_of(function: Callable[..., Any]) -> str:
    target: Any = function.func if isinstance(function, functools.partial) else function
    name = getattr(target, "__name__", None) or type(target).__name__
    if name == "<lambda>":
        raise ConfigurationError("A lambda has no name for a model to call it by: pass name=.")
    return str(name)


class ToolDefinition(Tool):
    """A tool with a name, a description, a JSON Schema and a handler that takes all arguments as one dict.

    The handler may be sync (it then runs in a thread) or async. ``metadata`` is the caller's own; ``source``, ``annotations``,
    ``title`` and ``output_schema`` in it become the tool's. Raises ConfigurationError without a handler, and for texts or
    parameters that cannot be sent (not JSON, lone surrogates).
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
        super().__init__(
            name,
            description,
            parameters=parameters,
            timeout=timeout,
            annotations=about.get("annotations"),
            title=about.get("title") or "",
            output_schema=about.get("output_schema"),
        )
        if not callable(handler):
            raise ConfigurationError(f"Tool {name!r} needs handler=, a function that takes the arguments as one dict.")
        spec = f"{name}{description}{checked_schema(self.parameters, f'tool {name!r}')}"
        if well_formed(spec) != spec:
            raise ConfigurationError(f"Tool {name!r} has a lone surrogate in its name, description or parameters.")
        self.handler = handler
        self.metadata = about
        self.source = str(about.get("source") or "")
        self.interruptible = is_async(handler)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:  # noqa: ARG002  (the handler takes one dict)
        """Call the handler with the arguments. It may return an envelope (``patchbay.tools.envelope``)."""
        value = await invoke(self.handler, (arguments,), {}, in_thread=not self.interruptible)
        return unwrap_tool_response(value, tool_name=self.name) if is_envelope(value) else value


def as_tool(item: Any) -> Tool:
    """Return ``item`` as a Tool: itself, or a FunctionTool of a function, method or callable object. Raises TypeError."""
    if isinstance(item, Tool):
        return item
    if isinstance(item, Mapping):
        raise TypeError("A dict has no handler to run: use tool(name=..., description=..., parameters=..., handler=function).")
    if inspect.isclass(item):
        raise TypeError(f"{item.__name__} is a class: pass an instance of a Tool, or a function.")
    if inspect.iscoroutine(item):
        raise TypeError("A coroutine was passed as a tool: pass the async function itself, without calling it.")
    if callable(item):
        return FunctionTool(item)
    raise TypeError(f"A tool must be a function or a Tool, not {type(item).__name__}.")


def collect_tools(items: Iterable[Any]) -> dict[str, Tool]:
    """Return the tools by name, in order. Raises TypeError for anything else, ConfigurationError for a duplicate name."""
    tools: dict[str, Tool] = {}
    for item in _as_list(items):
        tool = as_tool(item)
        if tool.name in tools:
            raise ConfigurationError(f"Two tools are named {tool.name!r}: a model could only call one of them.")
        tools[tool.name] = tool
    return tools


def collect_with_toolsets(items: Iterable[Any]) -> tuple[dict[str, Tool], list[Toolset]]:
    """Return the tools by name (``collect_tools``), and the Toolsets among the items."""
    given = _as_list(items)
    toolsets = [each for each in given if isinstance(each, Toolset)]
    return collect_tools([each for each in given if not isinstance(each, Toolset)] if toolsets else given), toolsets


def _as_list(items: Any) -> list[Any]:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise TypeError(f"tools must be a list of functions and tools, not {type(items).__name__}.")
    return list(items)
