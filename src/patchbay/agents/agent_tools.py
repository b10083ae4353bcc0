"""Tools of agents: an agent as a tool, the transfer to another agent, and the tool for a typed answer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from patchbay.agents.base import USER, BaseAgent, InvocationContext, Shared
from patchbay.agents.content import Content, Event, Part, UserOutput, new_id
from patchbay.agents.run_config import RunConfig
from patchbay.agents.sessions.log import temporary_changes
from patchbay.agents.sessions.memory import InMemorySessionService
from patchbay.errors import ConfigurationError, ToolArgumentsError, ToolFailed
from patchbay.loop.conversation import DELIVERED
from patchbay.tools import BaseTool, Tool, ToolActions, ToolContext, Validation
from patchbay.tools.output import ToolOutput

if TYPE_CHECKING:
    from patchbay.hooks import TurnHooks


class AgentTool(BaseTool):
    """A tool with one parameter, ``request``, that runs ``agent`` and returns its answer.

    The agent gets the request and the caller's state, but not the caller's conversation. Its changes of the state are applied
    once it has answered; of two concurrent calls that change one key, the later one wins. Its model and tool calls count for the
    run's limits. Without an answer the call fails with the agent's error. It also works in a runner without agents.
    """

    records_own_steps = True

    def __init__(self, agent: BaseAgent, *, timeout: float | None = None) -> None:
        if not isinstance(agent, BaseAgent):
            raise TypeError(f"AgentTool needs an agent, not {type(agent).__name__}.")
        super().__init__(agent.name, agent.description or f"Ask the agent {agent.name}.", timeout)
        self.agent = agent

    @override
    def get_declaration(self) -> dict[str, Any]:
        request = {"type": "string", "description": "What the agent is to do, with all that it needs to know."}
        parameters = {"type": "object", "properties": {"request": request}, "required": ["request"]}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> str | ToolOutput:
        """Run the agent on the request; the result has its tools' output for the user too. Raises ToolFailed without answer."""
        request = Content("user", [Part(args["request"])])
        caller: InvocationContext | None = tool_context.invocation_context
        ctx = await self._context(request, caller, tool_context)
        await ctx.record(Event(author=USER, content=request))
        answers: list[str] = []
        outputs: list[UserOutput] = []
        failure: Event | None = None
        try:
            async with aclosing(self.agent.run_async(ctx)) as events:
                async for event in events:
                    if event.error_code is not None and not event.partial:
                        failure = event
                    elif event.output is not None:
                        outputs.append(event.output)
                    elif event.is_final_response() and event.content is not None:
                        answers.append(event.content.text)
                    elif not event.partial and (calls := event.get_function_calls()):
                        tool_context.progress(f"{event.author}: {', '.join(call.name for call in calls)}")
                    if not event.partial:
                        tool_context.state.update(temporary_changes(event.actions.state_delta))
        finally:
            if caller is not None:
                caller.shared.usage += ctx.usage
        if failure is not None:
            raise ToolFailed(f"The agent {self.name!r} gave no answer: {failure.error_code}: {failure.error_message}")
        for event in ctx.session.events:  # not all of them were yielded
            tool_context.state.update(event.actions.state_delta)
        answer = "\n\n".join(filter(None, answers))
        return _for_both(answer, outputs) if outputs else answer

    async def _context(self, request: Content, caller: InvocationContext | None, tool_context: ToolContext) -> InvocationContext:
        """Return the context of a separate run, within the limits of the caller's."""
        config = caller.run_config if caller is not None else RunConfig()
        service = InMemorySessionService()
        state = tool_context.state.to_dict()
        session = await service.create_session(
            caller.app_name if caller is not None else self.name, caller.user_id if caller is not None else USER, state=state
        )
        session.state.update(temporary_changes(state))  # it is the same run
        # The call has the same id in a resumed run, and so have the calls that it makes.
        outer = tool_context.invocation_id
        return InvocationContext(
            agent=self.agent,
            session=session,
            session_service=service,
            invocation_id=f"{outer}.{tool_context.call_id}" if outer else new_id(),
            run_config=replace(config, streaming=False),
            user_content=request,
            bus=caller.bus if caller is not None else None,
            shared=Shared(caller.budget if caller is not None else config.budget()),
            media=tool_context.media,
            steps=caller.steps if caller is not None else None,
            owner_key=caller.session_key if caller is not None else None,
            **_hooks(caller, tool_context),
        )


def _hooks(caller: InvocationContext | None, tool_context: ToolContext) -> dict[str, Any]:
    """Return the options of the context that make the agent's turn a part of the caller's turn for hooks."""
    turn: TurnHooks | None = tool_context.hooks
    if turn is None:
        return {"hooks": caller.hooks, "hook_scope": caller.hook_scope} if caller is not None else {}
    return {"hooks": turn.manager, "hook_scope": replace(turn.scope, turn_id="", parent_turn_id=turn.scope.turn_id)}


def _for_both(answer: str, outputs: list[UserOutput]) -> ToolOutput:
    """Return the agent's answer with its tools' outputs for the user; without an answer, the outputs are the answer."""
    return ToolOutput(
        for_llm=answer or DELIVERED,
        for_user="\n\n".join(output.text for output in outputs if output.text),
        media=tuple(ref for output in outputs for ref in output.media),
        response_handled=not answer,
    )


class TransferToAgentTool(BaseTool):
    """``transfer_to_agent(agent_name)``: one of ``agents`` takes over, and its end is the end of the run."""

    def __init__(self, agents: Sequence[BaseAgent]) -> None:
        self._agents = tuple(agents)
        listed = "\n".join(f"- {agent.name}: {agent.description}" if agent.description else f"- {agent.name}" for agent in agents)
        super().__init__(
            "transfer_to_agent",
            "Hand the conversation over to another agent, which then answers in your place. Use it when that agent is better "
            f"suited to the user's request. The agents:\n{listed}",
        )

    def get_declaration(self) -> dict[str, Any]:
        """Return the declaration: one parameter, one of the agents' names."""
        name = {"type": "string", "enum": [agent.name for agent in self._agents], "description": "The agent's name."}
        parameters = {"type": "object", "properties": {"agent_name": name}, "required": ["agent_name"]}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, str]:
        """Request the transfer."""
        tool_context.actions.transfer_to_agent = args["agent_name"]
        return {"status": "transferring", "agent": args["agent_name"]}


def check_transfer(agent: BaseAgent, actions: ToolActions) -> None:
    """Reject a transfer to an unknown agent, or to the agent itself. Raises ToolFailed with a message for the model."""
    target = actions.transfer_to_agent
    if target is None:
        return
    if target == agent.name:
        raise ToolFailed(f"You are the agent {target!r} yourself: answer, or hand over to another one.")
    if agent.find_agent(target) is None:
        others = [each.name for each in agent.root_agent.walk() if each.name != agent.name]
        raise ToolFailed(f"Unknown agent {target!r}. Available: {', '.join(others) or 'none'}.")


ANSWER_TOOL: Final = "give_answer"
_ONLY: Final = "answer"

REMINDER: Final = f"Give your answer by calling the tool {ANSWER_TOOL!r}, and in no other way."
"""The reminder for a model that answered in words."""


class AnswerTool(Tool):
    """``give_answer``: its arguments are the answer, of the type ``output_schema`` (any type that pydantic supports).

    A type that is not a JSON object is wrapped: ``{"answer": ...}``.
    """

    acts = False

    def __init__(self, output_schema: Any) -> None:
        self._type = output_schema
        super().__init__(
            ANSWER_TOOL,
            "Give your final answer. Call this once, when you have all that you need; nothing comes after it.",
            strict=False,
        )

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

        from patchbay.schema.pydantic_model import known

        if inspect.isroutine(self._type):
            raise ConfigurationError(f"output_schema must be a type, not a function ({self._type!r}).")
        try:
            adapter: Any = TypeAdapter(known(self._type))
            adapter.json_schema()
        except (PydanticUserError, PydanticSchemaGenerationError) as error:
            raise ConfigurationError(f"output_schema cannot be expressed in JSON: {error}") from error
        return adapter

    @cached_property
    def _schema(self) -> Mapping[str, Any]:
        schema: Mapping[str, Any] = self._adapter.json_schema()
        return schema

    @cached_property
    def _is_object(self) -> bool:
        return self._schema.get("type") == "object"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The schema of the answer, with ``$defs`` at the root."""
        if self._is_object:
            return self._schema
        inner = {key: value for key, value in self._schema.items() if key != "$defs"}
        whole: dict[str, Any] = {"type": "object", "properties": {_ONLY: inner}, "required": [_ONLY]}
        if "$defs" in self._schema:
            whole["$defs"] = self._schema["$defs"]
        return whole

    def check(self) -> None:
        """Raise ConfigurationError for a type that JSON cannot express."""
        _ = self.spec

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:  # noqa: ARG002  (there is one way)
        """Return the answer as JSON types, serialised by its type. Raises ToolArgumentsError."""
        from pydantic import ValidationError

        from patchbay.schema.validation import pydantic_error_messages

        given = self._unchecked(raw_arguments)
        if not self._is_object:
            if _ONLY not in given:
                raise ToolArgumentsError(self.name, raw_arguments=raw_arguments, details=(f"{_ONLY}: is required",))
            given = given[_ONLY]
        try:
            answer = self._adapter.validate_json(json.dumps(given))
        except ValidationError as error:
            raise ToolArgumentsError(
                self.name, raw_arguments=raw_arguments, details=pydantic_error_messages(error, given)
            ) from None
        return {_ONLY: self._adapter.dump_python(answer, mode="json", by_alias=True)}

    def read(self, text: str) -> Any:
        """Parse an answer that a model wrote as text. Raises ToolArgumentsError, and ValueError for invalid JSON."""
        try:
            value = json.loads(text.strip().removeprefix("```json").removeprefix("```").removesuffix("```"))
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not self._is_object and not (isinstance(value, dict) and value.keys() == {_ONLY}):
            value = {_ONLY: value}
        return self.validate(json.dumps(value), None)[_ONLY]

    @override
    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        return arguments[_ONLY]
