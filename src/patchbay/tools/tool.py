"""What every kind of tool has in common: one class with one method to write, its annotations, and facts about its calls.

A kind of tool (a function, an HTTP callback, a plugin's) extends ``Tool`` and says how it runs; finding, checking, deadlines and
results are the executor's. ``BaseTool`` is the seed's class with a declaration of its own.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
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
"""How many things a tool of another process may say of itself."""

ANNOTATION_NAME: Final = r"^[A-Za-z0-9_.\-]{1,64}$"
"""What such a thing may be called."""

_ANNOTATION_NAME: Final = re.compile(ANNOTATION_NAME)
_HINTS: Final = {
    "readOnlyHint": "read_only",
    "destructiveHint": "destructive",
    "idempotentHint": "idempotent",
    "openWorldHint": "open_world",
}
"""What MCP calls the same."""


def normalized_annotations(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations by our names, also where they have MCP's."""
    return {_HINTS.get(name, name): value for name, value in annotations.items()}


def checked_annotations(annotations: Any) -> dict[str, bool]:
    """Return what a tool of another process says of itself, by our names. Raises ConfigurationError, which says why.

    It is an object of booleans: at most ``MOST_ANNOTATIONS``, under names that fit ``ANNOTATION_NAME``, none of them told twice.
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
    told = normalized_annotations(annotations)
    if len(told) != len(annotations):
        raise ConfigurationError("annotations say the same thing twice, by our name and by MCP's")
    return told


@dataclass(frozen=True)
class Validation:
    """How arguments are checked before a tool runs.

    Both switches are about tools with a JSON Schema of their own; a Python function's arguments are always
    coerced as its annotations say, and its defaults are its own.
    """

    coerce_types: bool = False
    use_defaults: bool = True


class _BaseToolOptions(TypedDict, total=False):
    sequential: bool
    max_parallel: int | None
    strict: bool
    annotations: Mapping[str, Any] | None


class ToolOptions(_BaseToolOptions, total=False):
    """What every kind of tool takes; see Tool."""

    timeout: float | None


class Tool(ABC):
    """Something that a model may call.

    ``name`` is what a model calls it by, ``description`` and ``parameters`` (a JSON Schema of type object)
    are what it is told of it. ``timeout`` is in seconds, None for no limit of its own; it may be set later. With
    ``sequential`` the tool runs alone: the calls before it in a reply are over, the calls after it wait.
    ``max_parallel`` is how many of its calls run at the same time, None for no limit of its own. With ``strict`` a
    provider that can hold a model to the schema is asked to. ``annotations`` is what the tool says of itself, such as
    ``{"read_only": True}`` or ``{"destructive": True}``: no model is shown them, policies go by them. Raises ConfigurationError
    for a name or limit that cannot work.
    """

    interruptible = True
    """Whether cancelling ``run`` stops the work. Where it is False, a result about a timeout says that the work may go on."""

    owner: str = ""
    """The hook that answers the tool's calls; "" for all tools but those that a hook has added to a turn."""

    acts: bool = True
    """Whether a call does something. Hooks are not asked about one that does not."""

    source: str = ""
    """Who the tool is from, as its registration has it (``plugin:weather``, ``hook:search``); "" for this program's own."""

    endpoint: str = ""
    """The address that its calls are sent to; "" for a tool of this process."""

    annotations: Mapping[str, Any] = MappingProxyType({})
    """What the tool says of itself. A kind of tool may say it of all its tools."""

    facts: Callable[[dict[str, Any]], Any] | None = None
    """What finds out what a call is really about, where its arguments do not show it: where a symlink leads, which row an id is.

    It is given the call's arguments and returns a mapping of what JSON knows, or an awaitable of one; one that is not async is
    called in a thread. It only looks. Whoever approves the call is shown the facts; they are asked for again right before it
    runs, which it does not if they are others then; and ``ToolContext.facts`` has them. None: there are none.
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
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"A tool's name must be a non-empty string, not {name!r}.")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigurationError(f"parameters of tool {name!r} must be a JSON Schema object.")
        if annotations is not None and not isinstance(annotations, Mapping):
            raise ConfigurationError(f"annotations of tool {name!r} must be a mapping, not {annotations!r}.")
        if max_parallel is not None and (isinstance(max_parallel, bool) or not isinstance(max_parallel, int) or max_parallel < 1):
            raise ConfigurationError(f"max_parallel of tool {name!r} must be a whole number of at least 1, not {max_parallel!r}.")
        self.name = name
        self._description = description
        self._parameters = parameters
        self.timeout = timeout
        self.sequential = sequential
        self.max_parallel = max_parallel
        self.strict = strict
        if annotations is not None:
            self.annotations = annotations

    @property
    def timeout(self) -> float | None:
        """The tool's own limit in seconds, None for none. Setting one that cannot be kept raises ConfigurationError."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._timeout = checked_timeout(seconds, f"timeout of tool {self.name!r}")

    @abstractmethod
    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Carry out one call and return its result: anything that can be written as JSON.

        ``arguments`` have been validated. Whatever is raised becomes an error result for the model.
        """

    @property
    def description(self) -> str:
        """The description for the model; it may be set until the model has got it."""
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
        """Whether the tool is offered to models. One that is not can still be called by its name."""
        return True

    @property
    def problem(self) -> str | None:
        """Why the tool cannot be offered to any model, None where it can; for the author of its schema."""
        return None

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool's spec for a model; made once."""
        return ToolSpec(self.name, self.description, self.parameters, True if self.strict else None)

    def check(self) -> None:
        """Raise ConfigurationError if the tool's schema cannot be used."""
        self._validator.check()

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:
        """Read a call's argument text; None for ``validation`` demands no more than a JSON object. Raises ToolArgumentsError."""
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


def checked_timeout(seconds: float | None, what: str) -> float | None:
    """Return ``seconds``, or raise ConfigurationError for a limit that cannot be kept."""
    if seconds is None:
        return None
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or seconds <= 0:
        raise ConfigurationError(f"{what} must be a positive number of seconds, or None for no limit; not {seconds!r}.")
    return seconds


def checked_schema(parameters: Mapping[str, Any], what: str) -> str:
    """Return a schema as JSON text, or raise ConfigurationError for one that is not JSON: no list with it could be sent."""
    try:
        return json.dumps(parameters, sort_keys=True, allow_nan=False, ensure_ascii=False, default=_as_dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"parameters of {what} are no JSON: {error}") from None


def _as_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"there is a {type(value).__name__} in it")


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
        **options: Unpack[_BaseToolOptions],
    ) -> None:
        super().__init__(name, description, timeout=timeout, **options)

    @abstractmethod
    def get_declaration(self) -> dict[str, Any] | None:
        """Return ``{"name", "description", "parameters"}``, the last a JSON Schema; None: the tool is not offered."""

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
        """The tool's spec for a model; made once. Its name is the tool's, whatever the declaration says."""
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


MOST_FACTS_CHARS: Final = 8 * 1024
"""How many characters of JSON the facts of a call may have: an approver reads them all."""

DENIED: Final = "Tool execution denied"

_ERROR_CHARS: Final = 300


async def find_facts(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what ``tool.facts`` says of a call with ``arguments``, as JSON knows it; {} of a tool that has no such function.

    The arguments are the function's own from then on. One that is not async is called in a thread. Raises ToolDeniedError where
    it fails, and for what are no facts; what it raises of the ToolErrors (``ToolRetry``, ``ToolFailed``) is raised as it is.
    """
    if tool.facts is None:
        return {}
    try:
        return _checked(await invoke(tool.facts, (arguments,), {}, in_thread=not is_async(tool.facts)))
    except ToolError:
        raise
    except Exception as error:
        words = f"what the call is about could not be found out: {describe(error):.{_ERROR_CHARS}}"
        raise ToolDeniedError(DENIED, words, tool_name=tool.name, by=tool.name) from error


def changed_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that are not the same in both."""
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
