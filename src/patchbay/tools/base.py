"""What every kind of tool has in common: one class with one method to write.

A kind of tool (a function, an HTTP callback, a plugin's) extends ``Tool`` and says how it runs; finding,
checking, deadlines and results are the executor's.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.schema import SchemaValidator
from patchbay.tools.context import ToolContext
from patchbay.types import EMPTY_PARAMETERS, ToolSpec


@dataclass(frozen=True)
class Validation:
    """How arguments are checked before a tool runs.

    Both switches are about tools with a JSON Schema of their own; a Python function's arguments are always
    coerced as its annotations say, and its defaults are its own.
    """

    coerce_types: bool = False
    use_defaults: bool = True


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
        """What the model is told the tool is for; it may be set until the model has been told."""
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
        """Whether a model is told of the tool. One that is not offered can still be called by its name."""
        return True

    @property
    def problem(self) -> str | None:
        """Why no model can be told of the tool, None where one can; for whoever wrote its schema."""
        return None

    @cached_property
    def spec(self) -> ToolSpec:
        """What a model is told of the tool; made once."""
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
    """Return a schema as JSON text, or raise ConfigurationError for one that is none: no list that it is in could be shown."""
    try:
        return json.dumps(parameters, sort_keys=True, allow_nan=False, ensure_ascii=False, default=_as_dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"parameters of {what} are no JSON: {error}") from None


def _as_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"there is a {type(value).__name__} in it")
