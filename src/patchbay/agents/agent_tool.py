"""An agent as a tool: it is asked something, works in a session of its own, and its answer is the tool's result."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from patchbay.agents.base import USER, BaseAgent
from patchbay.agents.config import RunConfig
from patchbay.agents.content import Content, Event, Part, UserOutput, new_id
from patchbay.agents.context import InvocationContext, Shared
from patchbay.agents.sessions.memory import InMemorySessionService
from patchbay.agents.sessions.scopes import temporary
from patchbay.errors import ToolFailed
from patchbay.loop.conversation import DELIVERED
from patchbay.tools import BaseTool, ToolContext
from patchbay.tools.output import ToolOutput

if TYPE_CHECKING:
    from patchbay.hooks import TurnHooks


class AgentTool(BaseTool):
    """A tool with one parameter, ``request``, that runs ``agent`` and returns what it answers.

    The agent sees the request and the caller's state, and nothing of the caller's conversation. What it changes in the state is
    changed once it has answered; where two such calls at the same time change one key, the later one has its way. Its model and
    tool calls count for the run's limits. Where it gives no answer the call fails with what went wrong. It works in a runner
    without agents too.
    """

    def __init__(self, agent: BaseAgent, *, timeout: float | None = None) -> None:
        if not isinstance(agent, BaseAgent):
            raise TypeError(f"AgentTool takes an agent, not {type(agent).__name__}.")
        super().__init__(agent.name, agent.description or f"Ask the agent {agent.name}.", timeout)
        self.agent = agent

    def get_declaration(self) -> dict[str, Any]:
        """Return the declaration."""
        request = {"type": "string", "description": "What the agent is to do, with all that it needs to know."}
        parameters = {"type": "object", "properties": {"request": request}, "required": ["request"]}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> str | ToolOutput:
        """Run the agent on the request; what its tools have for the user goes along. Raises ToolFailed without an answer."""
        said = Content("user", [Part(args["request"])])
        caller: InvocationContext | None = tool_context.invocation_context
        ctx = await self._context(said, caller, tool_context)
        await ctx.record(Event(author=USER, content=said))
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
                        tool_context.state.update(temporary(event.actions.state_delta))
        finally:
            if caller is not None:
                caller.shared.usage += ctx.usage
        if failure is not None:
            raise ToolFailed(f"The agent {self.name!r} gave no answer: {failure.error_code}: {failure.error_message}")
        for event in ctx.session.events:  # not all of them have been told
            tool_context.state.update(event.actions.state_delta)
        answer = "\n\n".join(filter(None, answers))
        return _for_both(answer, outputs) if outputs else answer

    async def _context(self, said: Content, caller: InvocationContext | None, tool_context: ToolContext) -> InvocationContext:
        """Return a run of its own, within the limits of the caller's."""
        config = caller.run_config if caller is not None else RunConfig()
        service = InMemorySessionService()
        state = tool_context.state.to_dict()
        session = await service.create_session(
            caller.app_name if caller is not None else self.name, caller.user_id if caller is not None else USER, state=state
        )
        session.state.update(temporary(state))  # it is the same run
        # A call of a run that is taken up again is the same call, and so are those that it leads to.
        outer = tool_context.invocation_id
        return InvocationContext(
            agent=self.agent,
            session=session,
            session_service=service,
            invocation_id=f"{outer}.{tool_context.call_id}" if outer else new_id(),
            run_config=replace(config, streaming=False),
            user_content=said,
            bus=caller.bus if caller is not None else None,
            shared=Shared(caller.budget if caller is not None else config.budget()),
            media=tool_context.media,
            session_key=caller.session_key if caller is not None else None,
            **_hooks(caller, tool_context),
        )


def _hooks(caller: InvocationContext | None, tool_context: ToolContext) -> dict[str, Any]:
    """The hooks of the turn that made the call, for a turn that is part of it."""
    turn: TurnHooks | None = tool_context.hooks
    if turn is None:
        return {"hooks": caller.hooks, "hook_scope": caller.hook_scope} if caller is not None else {}
    return {"hooks": turn.manager, "hook_scope": replace(turn.scope, parent_turn_id=turn.scope.turn_id)}


def _for_both(answer: str, outputs: list[UserOutput]) -> ToolOutput:
    """What the agent said, and what its tools had for the user. Without an answer they were it."""
    return ToolOutput(
        for_llm=answer or DELIVERED,
        for_user="\n\n".join(output.text for output in outputs if output.text),
        media=tuple(ref for output in outputs for ref in output.media),
        response_handled=not answer,
    )
