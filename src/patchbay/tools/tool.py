"""The base classes of tools, their annotations, and the facts about a call.

A kind of tool (a function, an HTTP callback, a plugin's) extends ``Tool`` with one method, ``run``; the executor finds and
checks calls, and applies deadlines. ``BaseTool`` is for tools that declare themselves (``get_declaration``).
"""

from __future__ import annotations

import inspect
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, TypedDict, Unpack

from patchbay.errors import ConfigurationError, ToolArgumentsError, ToolDeniedError, ToolError
from patchbay.schema import SchemaValidator
from patchbay.tools.context import ToolContext
from patchbay.tools.results import describe, read_exactly, write_exactly
from patchbay.tools.threads import invoke, is_async
from patchbay.types import EMPTY_PARAMETERS, ToolSpec

MOST_ANNOTATIONS: Final = 32
"""The most annotations of a tool of another process."""

ANNOTATION_NAME: Final = r"^[A-Za-z0-9_.\-]{1,64}$"
"""The pattern of an annotation's name."""

_ANNOTATION_NAME: Final = re.compile(ANNOTATION_NAME)
MCP_HINTS: Final = {
    "readOnlyHint": "read_only",
    "destructiveHint": "destructive",
    "idempotentHint": "idempotent",
    "openWorldHint": "open_world",
}
"""Our names of annotations by MCP's."""


def normalized_annotations(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations with MCP's names replaced by ours."""
    return {MCP_HINTS.get(name, name): value for name, value in annotations.items()}


def checked_annotations(annotations: Any) -> dict[str, bool]:
    """Return the annotations of a tool of another process, by our names. Raises ConfigurationError for invalid ones.

    They are an object of at most ``MOST_ANNOTATIONS`` booleans, with names that match ``ANNOTATION_NAME``, and no duplicates.
    """
    if not isinstance(annotations, Mapping):
        raise ConfigurationError(f"annotations must be an object of booleans, not {type(annotations).__name__}")
    if len(annotations) > MOST_ANNOTATIONS:
        raise ConfigurationError(f"annotations must be no more than {MOST_ANNOTATIONS}, not {len(annotations)}")
    for name, value in annotations.items():
        if not isinstance(name, str) or _ANNOTATION_NAME.match(name) is None or name.endswith("\n"):
            raise ConfigurationError("an annotation's name must be 1 to 64 of A-Z, a-z, 0-9, '_', '.', '-'")
        if not isinstance(value, bool):
            raise ConfigurationError(f"the annotation {name!r} must be true or false, not {type(value).__name__}")
    normalized = normalized_annotations(annotations)
    if len(normalized) != len(annotations):
        raise ConfigurationError("annotations say the same thing twice, by our name and by MCP's")
    return normalized


@dataclass(frozen=True)
class Validation:
    """The checks of arguments before a tool runs.

    Both options are for tools with a JSON Schema; a Python function's arguments are always coerced to its annotations, and
    Python applies its defaults.
    """

    coerce_types: bool = False
    use_defaults: bool = True


class _BaseToolOptions(TypedDict, total=False):
    sequential: bool
    max_parallel: int | None
    strict: bool
    annotations: Mapping[str, Any] | None
    title: str
    output_schema: Mapping[str, Any] | None


class ToolOptions(_BaseToolOptions, total=False):
    """The options of every kind of tool; see Tool."""

    timeout: float | None


class Tool(ABC):
    """A tool that a model may call.

    The model gets ``name``, ``description`` and ``parameters`` (a JSON Schema of type object). ``timeout`` is in seconds, None
    for no limit of its own; it may be set later. With ``sequential`` the tool runs alone: the calls before it in a reply have
    ended, the calls after it wait. ``max_parallel`` limits its concurrent calls (None: no limit). With ``strict`` a provider is
    asked to enforce the schema, if it can. ``annotations`` describe the tool for policies, such as ``{"read_only": True}`` or
    ``{"destructive": True}``; models do not get them. ``title`` is the tool's name for people and ``output_schema`` a JSON
    Schema of its results, both for MCP clients. Raises ConfigurationError for an invalid name, schema or limit.
    """

    interruptible = True
    """Whether cancelling ``run`` stops the work. If not, the result of a timeout says that the work may go on."""

    owner: str = ""
    """The hook that answers the tool's calls; "" except for tools that a hook has added to a turn."""

    acts: bool = True
    """Whether a call does something. Hooks do not get calls of a tool that does not act."""

    records_own_steps: bool = False
    """Whether a call is no step of a durable run, because its own models and tools are."""

    source: str = ""
    """The source of its registration (``plugin:weather``, ``hook:search``); "" for a tool of this program."""

    endpoint: str = ""
    """The address that its calls are sent to; "" for a tool of this process."""

    annotations: Mapping[str, Any] = MappingProxyType({})
    """The tool's annotations. A subclass may set them for all its tools."""

    title: str = ""
    """The tool's name for people, "" for none. A subclass may set it for all its tools."""

    output_schema: Mapping[str, Any] | None = None
    """The JSON Schema of its results, None for none. A subclass may set it for all its tools."""

    icons: Sequence[Mapping[str, Any]] = ()
    """Its icons for people, as in MCP: ``src``, ``mimeType``, ``sizes``."""

    facts: Callable[[dict[str, Any]], Any] | None = None
    """A function that finds facts about a call which its arguments do not show: the target of a symlink, the row of an id.

    It takes the call's arguments, has no side effects, and returns a JSON-compatible mapping, or an awaitable of one; a sync
    function is called in a thread. Approvers see the facts. They are looked up again right before the call runs, which fails if
    they have changed; ``ToolContext.facts`` has them. None: no facts.
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        *,
        parameters: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        sequential: bool = False,
        max_parallel: int | None = None,
        strict: bool = False,
        annotations: Mapping[str, Any] | None = None,
        title: str = "",
        output_schema: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"A tool's name must be a non-empty string, not {name!r}.")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigurationError(f"parameters of tool {name!r} must be a JSON Schema object.")
        if annotations is not None and not isinstance(annotations, Mapping):
            raise ConfigurationError(f"annotations of tool {name!r} must be a mapping, not {annotations!r}.")
        if output_schema is not None and not isinstance(output_schema, Mapping):
            raise ConfigurationError(f"output_schema of tool {name!r} must be a JSON Schema object.")
        self.name = name
        self._description = description
        self._parameters = parameters
        self.timeout = timeout
        self.sequential = sequential
        self.max_parallel = checked_count(max_parallel, f"max_parallel of tool {name!r}") if max_parallel is not None else None
        self.strict = strict
        if annotations is not None:
            self.annotations = annotations
        if title:
            self.title = title
        if output_schema is not None:
            self.output_schema = output_schema

    @property
    def timeout(self) -> float | None:
        """The tool's own limit in seconds, None for none. Setting one that cannot be kept raises ConfigurationError."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._timeout = checked_timeout(seconds, f"timeout of tool {self.name!r}")

    @abstractmethod
    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run one call and return its result: any JSON-compatible value.

        ``arguments`` are validated. An exception becomes an error result for the model.
        """

    @property
    def description(self) -> str:
        """The description for the model; it may be set until the spec is made."""
        return self._description

    @description.setter
    def description(self, text: str) -> None:
        self._description = text

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of the arguments."""
        return self._parameters if self._parameters is not None else EMPTY_PARAMETERS

    @property
    def offered(self) -> bool:
        """Whether the tool is offered to models. Otherwise it can still be called by its name."""
        return True

    @property
    def problem(self) -> str | None:
        """Why the tool cannot be offered to any model (None: it can); for the author of its schema."""
        return None

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool's spec for a model; made once."""
        return ToolSpec(self.name, self.description, self.parameters, True if self.strict else None)

    def check(self) -> None:
        """Raise ConfigurationError if the tool's schema cannot be used."""
        self._validator.check()

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:
        """Parse a call's arguments; ``validation`` None requires only a JSON object. Raises ToolArgumentsError."""
        if validation is None:
            return self._unchecked(raw_arguments)
        result = self._validator.validate(
            raw_arguments, coerce_types=validation.coerce_types, use_defaults=validation.use_defaults
        )
        if not result.valid or result.value is None:
            raise ToolArgumentsError(self.name, raw_arguments=raw_arguments, details=result.errors)
        return result.value

    def _unchecked(self, raw_arguments: str) -> dict[str, Any]:
        from patchbay.schema.arguments import UnreadableArgumentsError, read_arguments

        try:
            return read_arguments(raw_arguments)
        except UnreadableArgumentsError as error:
            raise ToolArgumentsError(self.name, raw_arguments=raw_arguments, details=(str(error),)) from None

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self.name, self.parameters)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class ForeignTool(Tool):
    """A tool of another process, with a schema that was not made here.

    Models are not offered one with a schema that providers reject: it would take all other tools with it.
    """

    @cached_property
    def problem(self) -> str | None:
        """Why models cannot be offered the tool; None if they can."""
        from patchbay.schema.dialects import unsupported_reason

        return unsupported_reason(self.parameters)

    @cached_property
    def offered(self) -> bool:
        """Whether models are offered the tool."""
        return self.problem is None


def checked_count(count: int | None, what: str) -> int | None:
    """Return ``count``, or raise ConfigurationError for one that is not a positive whole number or None."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigurationError(f"{what} must be a whole number of at least 1, or None for no limit; not {count!r}.")
    return count


def checked_timeout(seconds: float | None, what: str) -> float | None:
    """Return ``seconds``, or raise ConfigurationError for a limit that cannot be enforced."""
    if seconds is None:
        return None
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or seconds <= 0:
        raise ConfigurationError(f"{what} must be a positive number of seconds, or None for no limit; not {seconds!r}.")
    return seconds


def checked_schema(parameters: Mapping[str, Any], what: str) -> str:
    """Return a schema as JSON text. Raises ConfigurationError for one that is not JSON, which could not be sent."""
    try:
        return json.dumps(parameters, sort_keys=True, allow_nan=False, ensure_ascii=False, default=_as_dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"parameters of {what} are not JSON: {error}") from None


def _as_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"there is a {type(value).__name__} in it")


class BaseTool(Tool):
    """A tool that declares itself: write ``get_declaration`` and ``run_async``.

    ``timeout`` is in seconds, None for no limit of its own. ``get_declaration`` is called once; arguments are checked against
    its ``parameters`` before ``run_async`` is called.
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        timeout: float | None = None,
        **options: Unpack[_BaseToolOptions],
    ) -> None:
        super().__init__(name, description, timeout=timeout, **options)

    @abstractmethod
    def get_declaration(self) -> dict[str, Any] | None:
        """Return ``{"name", "description", "parameters"}``, the last a JSON Schema; None: the tool is not offered."""

    @abstractmethod
    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Run one call. ``args`` are validated; an exception becomes an error result."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Call ``run_async``."""
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
        """The tool's spec for a model; made once. Its name is the tool's, not the declaration's."""
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
            raise ConfigurationError(f"The parameters in the declaration of tool {self.name!r} are not a JSON Schema object.")
        return declaration


class Toolset(ABC):
    """An entry of the ``tools`` of a runner or agent that provides the tools it has when a turn begins, such as an MCP server's.

    The runner or agent closes it. It may be used again after that, and by several at once.
    """

    @abstractmethod
    async def get_tools(self) -> Sequence[Tool]:
        """Return the tools for a turn that begins now."""

    async def aclose(self) -> None:
        """Close the set's connections."""
        return


MOST_FACTS_CHARS: Final = 8 * 1024
"""The most characters of JSON in the facts of a call: an approver reads them all."""

DENIED: Final = "Tool execution denied"

_ERROR_CHARS: Final = 300


async def find_facts(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the result of ``tool.facts`` for a call as JSON types; {} if the tool has no such function.

    The function may keep and change the arguments. A sync one is called in a thread. Raises ToolDeniedError if it fails or
    returns invalid facts; its own ToolErrors (``ToolRetry``, ``ToolFailed``) are raised unchanged.
    """
    if tool.facts is None:
        return {}
    try:
        return _checked(await invoke(tool.facts, (arguments,), {}, in_thread=not is_async(tool.facts)))
    except ToolError:
        raise
    except Exception as error:
        reason = f"the facts of the call could not be found: {describe(error):.{_ERROR_CHARS}}"
        raise ToolDeniedError(DENIED, reason, tool_name=tool.name, by=tool.name) from error


def changed_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that differ."""
    # As text: to Python 1 and True are the same.
    one, other = ({name: json.dumps(value, sort_keys=True) for name, value in facts.items()} for facts in (before, now))
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _checked(found: Any) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise TypeError(f"facts must be a mapping, not {type(found).__name__}")
    text = write_exactly(dict(found))
    if len(text) > MOST_FACTS_CHARS:
        raise ValueError(f"{len(text)} characters of facts are too long: the limit is {MOST_FACTS_CHARS}")
    read: dict[str, Any] = read_exactly(text)
    return read
