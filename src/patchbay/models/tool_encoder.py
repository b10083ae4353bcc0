"""Encodes a request's tools for one provider: its subset of JSON Schema, and names that it allows.

A tool keeps its own name in the conversation, in results and in the executor. On the wire it may have an alias, in the list of
tools as in the history; calls are translated back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from patchbay.models.chat_model import ChatRequest
from patchbay.models.providers import Provider
from patchbay.models.wire import Raw, encode
from patchbay.schema.dialects import Aliases
from patchbay.schema.subsets import Unsupported, without_added_nulls
from patchbay.types import Message, Reply, ToolCall, ToolSpec

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodedTools:
    """Encoded tools: OpenAI's list, and their names there.

    ``strict`` has the own schemas, by name, of tools that were sent with a stricter one.
    """

    tools: list[dict[str, Any]]
    names: Aliases
    strict: Mapping[str, Mapping[str, Any]]

    @cached_property
    def encoded(self) -> Raw:
        """The list as JSON, encoded once, for bodies that no SDK encodes."""
        return Raw(encode(self.tools))

    def body(self, request: ChatRequest) -> dict[str, Any]:
        """Return the body of chat completions for ``request``."""
        body: dict[str, Any] = {**request.parameters, "messages": self.in_messages(request.messages)}
        if self.tools:
            body["tools"] = self.tools
        if request.tool_choice is not None:
            body["tool_choice"] = self.in_choice(request.tool_choice)
        return body

    def in_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Rename the tools in the calls and results of a history."""
        wire = self.names.wire
        return [_renamed(each, wire) if "tool_calls" in each or "name" in each else each for each in messages]

    def in_choice(self, tool_choice: Any) -> Any:
        """Rename the tools in a ``tool_choice``."""
        if not isinstance(tool_choice, Mapping):
            return tool_choice
        allowed = tool_choice.get("allowed_tools")
        if isinstance(allowed, Mapping) and isinstance(allowed.get("tools"), list):
            tools = [_function_renamed(tool, self.names.wire) for tool in allowed["tools"]]
            return {**tool_choice, "allowed_tools": {**allowed, "tools": tools}}
        return _function_renamed(tool_choice, self.names.wire)

    def own(self, reply: Reply) -> Reply:
        """Translate the calls of a reply back to the tools' own names and schemas."""
        if not (self.names.changed or self.strict) or not (reply.tool_calls or reply.incomplete):
            return reply
        cut = tuple(replace(call, name=self.names.own(call.name)) for call in reply.incomplete)
        return replace(reply, tool_calls=tuple(map(self._own_call, reply.tool_calls)), incomplete=cut)

    def _own_call(self, call: ToolCall) -> ToolCall:
        name = self.names.own(call.name)
        schema = self.strict.get(name)
        arguments = call.raw_arguments if schema is None else without_added_nulls(schema, call.raw_arguments)
        return replace(call, name=name, raw_arguments=arguments)


class ToolEncoder:
    """Encodes tools for one provider. The same tools are encoded once, so their bytes stay the same from round to round.

    A tool whose schema the provider cannot express is left out alone, and the log says why, once.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._specs: tuple[ToolSpec, ...] = ()
        self._as_sent: Mapping[str, Mapping[str, Any]] = {}
        self._encoded = EncodedTools([], Aliases((), provider.dialect.names), {})
        self._reported: set[str] = set()

    def of(self, specs: Sequence[ToolSpec], *, as_sent: Mapping[str, Mapping[str, Any]] | None = None) -> EncodedTools:
        """Encode tools. ``as_sent`` has elements of OpenAI's list by name, which stay unchanged."""
        as_sent = as_sent or {}
        if tuple(specs) != self._specs or as_sent != self._as_sent:
            self._encoded = self._encode(specs, as_sent)
            self._specs = tuple(specs)
            self._as_sent = as_sent
        return self._encoded

    def _encode(self, specs: Sequence[ToolSpec], as_sent: Mapping[str, Mapping[str, Any]]) -> EncodedTools:
        dialect = self._provider.dialect
        names = Aliases([spec.name for spec in specs], dialect.names, fixed=as_sent)
        tools: list[dict[str, Any]] = []
        strict: dict[str, Mapping[str, Any]] = {}
        for spec in specs:
            if (element := as_sent.get(spec.name)) is not None:
                tools.append(dict(element))
                continue
            exact = self._strictly(spec)
            if exact is not None:
                strict[spec.name] = spec.parameters
            expressed = dialect.express(spec) if exact is None else exact
            if isinstance(expressed, Unsupported):
                self._report(spec.name, expressed.reason)
            else:
                tools.append(dialect.shape(replace(expressed, name=names.wire(spec.name))))
        return EncodedTools(tools, names, strict)

    def _strictly(self, spec: ToolSpec) -> ToolSpec | None:
        """Return the tool with a schema that the provider enforces; None if that is not wanted or not possible."""
        if not spec.strict or self._provider.strict_dialect is None:
            return None
        expressed = self._provider.strict_dialect.express(spec)
        return None if isinstance(expressed, Unsupported) else expressed

    def _report(self, name: str, reason: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            _logger.warning("The tool %r is not offered to %s: %s", name, self._provider.name or "the model's server", reason)


def _renamed(message: Message, wire: Callable[[str], str]) -> Message:
    """Rename the tools in a message; the same object if no name changes."""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        renamed = [_function_renamed(call, wire) for call in calls]
        if renamed != calls:
            return {**message, "tool_calls": renamed}
    name = message.get("name")
    if message.get("role") == "tool" and isinstance(name, str) and wire(name) != name:
        return {**message, "name": wire(name)}
    return message


def _function_renamed(holder: Any, wire: Callable[[str], str]) -> Any:
    # (``isinstance`` of an abstract class costs more than all else here)
    function = holder.get("function") if type(holder) is dict or isinstance(holder, Mapping) else None
    if not (type(function) is dict or isinstance(function, Mapping)):
        return holder
    if not isinstance(name := function.get("name"), str) or wire(name) == name:
        return holder
    return {**holder, "function": {**function, "name": wire(name)}}
