"""Questions of MCP servers to the user (elicitation): requests for approval, whose edited arguments are the answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, cast

import mcp_types as types
from typing_extensions import override

from patchbay._text import one_line
from patchbay.approvals.request import is_policy
from patchbay.errors import ConfigurationError, ToolDeniedError
from patchbay.executor import Executor
from patchbay.hooks import Ask, HookManager, ToolRequest, TurnHooks, native
from patchbay.mcp.config import McpServer
from patchbay.schema import SchemaValidator
from patchbay.schema.arguments import read_arguments
from patchbay.tools import Tool, ToolContext, Validation
from patchbay.types import ToolCall

current_call: Final[ContextVar[ToolContext]] = ContextVar("current_call")
"""The context of the call of an MCP server's tool that the current code is part of."""

_MAX_MESSAGE: Final = 4_000
_CANCEL: Final = types.ElicitResult(action="cancel")

_logger = logging.getLogger(__name__)


class _Question(Tool):
    """A question. Its arguments are the answer, which a person edits; the person sees the message and the URL as facts."""

    def __init__(self, server: McpServer, params: types.ElicitRequestParams, asked_by: str) -> None:
        schema = params.requested_schema if isinstance(params, types.ElicitRequestFormParams) else None
        super().__init__(f"{asked_by}.question", "A question of an MCP server.", parameters=schema)
        self.source = server.source
        self.endpoint = server.address
        about = {"server": server.name, "message": params.message[:_MAX_MESSAGE]}
        if isinstance(params, types.ElicitRequestURLParams):
            about["url"] = params.url
        self.facts = lambda _: about

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:  # noqa: ARG002  (it is not filled in yet)
        """Return the arguments, which need not be complete."""
        return read_arguments(raw_arguments)

    @override
    async def run(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        return arguments


async def ask_person(server: McpServer, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Put a question to a person, who approves it with the answer, or denies it.

    The hooks of the call that it belongs to ask it; the call's time limits pause meanwhile. The action is "cancel" where no
    person can be asked, none decides in time, or the answer does not fit the form; "decline" where a person denies it.
    """
    context = current_call.get(None)
    turn: TurnHooks | None = context.hooks if context is not None else None
    if context is None or turn is None or turn.manager.people is None:
        _logger.warning("The MCP server %r asks a question, and no person can be asked here: %.200s", server.name, params.message)
        return _CANCEL
    question = _Question(server, params, context.name)
    answer = await _decide(question, turn, context, f"the MCP server {server.name!r} asks: {one_line(params.message, 300)}")
    if isinstance(answer, types.ElicitResult):
        return answer
    if isinstance(params, types.ElicitRequestURLParams):
        return types.ElicitResult(action="accept")
    try:
        problems = SchemaValidator(question.name, question.parameters).error_messages(answer)
    except ConfigurationError as error:
        problems = (str(error),)
    if problems:
        _logger.warning("The answer to %r does not fit its form: %s", question.name, "; ".join(problems)[:300])
        return _CANCEL
    return types.ElicitResult(action="accept", content=answer)


async def _decide(question: _Question, turn: TurnHooks, context: ToolContext, why: str) -> dict[str, Any] | types.ElicitResult:
    """Return the answer, or a result without one."""

    async def ask(_: ToolRequest) -> Ask:
        return Ask(why)

    executor = Executor([question], hooks=cast(HookManager, turn.manager), links=[native("mcp elicitation", approve_tool=ask)])
    call = ToolCall(f"{context.call_id}.question", question.name, json.dumps(_defaults(question.parameters)))
    batch = executor.begin_run(agent_scope=context.agent_scope, scope=turn.scope).start_batch([call])
    try:
        execution = await anext(batch)
    finally:
        await batch.stop()
    error = execution.error
    if error is None:
        answer: dict[str, Any] = execution.value
        return answer
    if isinstance(error, ToolDeniedError) and not is_policy(error.by):
        return types.ElicitResult(action="decline")
    _logger.warning("The question %r has no answer: %s", question.name, error)
    return _CANCEL


def _defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: each["default"] for name, each in properties.items() if isinstance(each, Mapping) and "default" in each}
