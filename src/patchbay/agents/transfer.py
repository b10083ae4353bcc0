"""Handing over: the tool that an agent with sub-agents gets by itself, and the check of every hand-over that a tool asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from patchbay.errors import ToolFailed
from patchbay.tools import BaseTool, ToolActions, ToolContext

if TYPE_CHECKING:
    from patchbay.agents.base import BaseAgent


class TransferToAgentTool(BaseTool):
    """``transfer_to_agent(agent_name)``: one of ``agents`` goes on in this agent's place, and the run is over when it is."""

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
        """Ask for the hand-over."""
        tool_context.actions.transfer_to_agent = args["agent_name"]
        return {"status": "transferring", "agent": args["agent_name"]}


def check_transfer(agent: BaseAgent, actions: ToolActions) -> None:
    """Fail a call that hands over to nobody, or to the agent itself. Raises ToolFailed, with words for the model."""
    target = actions.transfer_to_agent
    if target is None:
        return
    if target == agent.name:
        raise ToolFailed(f"You are the agent {target!r} yourself: answer, or hand over to another one.")
    if agent.find_agent(target) is None:
        others = [each.name for each in agent.root_agent.walk() if each.name != agent.name]
        raise ToolFailed(f"Unknown agent {target!r}. Available: {', '.join(others) or 'none'}.")
