"""Agents: a model with an instruction and tools, agents made of agents, and what is said and kept around the loop.

LlmAgent                                     a model with an instruction and tools
SequentialAgent, LoopAgent, ParallelAgent    agents one after the other, again and again, side by side
AgentTool                                    an agent as a tool
Runner, RunConfig                            a user's message in, events out
InMemorySessionService, DatabaseSessionService
EventBus                                     what happens in runs (``topics``)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.agents.agent_tools import AgentTool, TransferToAgentTool
    from patchbay.agents.base import BaseAgent
    from patchbay.agents.callbacks import LlmRequest, LlmResponse
    from patchbay.agents.chat_history import (
        BaseChatHistoryService,
        ChatMessage,
        InMemoryChatHistoryService,
        create_history_tool,
        history_tool,
    )
    from patchbay.agents.chat_history_database import DatabaseChatHistoryService
    from patchbay.agents.content import (
        Blob,
        Content,
        Event,
        EventActions,
        FunctionCall,
        FunctionResponse,
        Part,
        ToolProgress,
        UserOutput,
    )
    from patchbay.agents.context import CallbackContext, GenerateContentConfig, InvocationContext, ReadonlyContext, RunConfig
    from patchbay.agents.event_bus import BusEvent, EventBus
    from patchbay.agents.llm_agent import Agent, LlmAgent
    from patchbay.agents.runner import RunEvents, Runner
    from patchbay.agents.sessions.base import BaseSessionService
    from patchbay.agents.sessions.database import DatabaseSessionService
    from patchbay.agents.sessions.log import Session
    from patchbay.agents.sessions.memory import InMemorySessionService
    from patchbay.agents.workflow import LoopAgent, ParallelAgent, SequentialAgent, exit_loop

__all__ = [
    "Agent",
    "AgentTool",
    "BaseAgent",
    "BaseChatHistoryService",
    "BaseSessionService",
    "Blob",
    "BusEvent",
    "CallbackContext",
    "ChatMessage",
    "Content",
    "DatabaseChatHistoryService",
    "DatabaseSessionService",
    "Event",
    "EventActions",
    "EventBus",
    "FunctionCall",
    "FunctionResponse",
    "GenerateContentConfig",
    "InMemoryChatHistoryService",
    "InMemorySessionService",
    "InvocationContext",
    "LlmAgent",
    "LlmRequest",
    "LlmResponse",
    "LoopAgent",
    "ParallelAgent",
    "Part",
    "ReadonlyContext",
    "RunConfig",
    "RunEvents",
    "Runner",
    "SequentialAgent",
    "Session",
    "ToolProgress",
    "TransferToAgentTool",
    "UserOutput",
    "create_history_tool",
    "exit_loop",
    "history_tool",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "Agent": "patchbay.agents.llm_agent",
        "AgentTool": "patchbay.agents.agent_tools",
        "BaseAgent": "patchbay.agents.base",
        "BaseChatHistoryService": "patchbay.agents.chat_history",
        "BaseSessionService": "patchbay.agents.sessions.base",
        "Blob": "patchbay.agents.content",
        "BusEvent": "patchbay.agents.event_bus",
        "CallbackContext": "patchbay.agents.context",
        "ChatMessage": "patchbay.agents.chat_history",
        "Content": "patchbay.agents.content",
        "DatabaseChatHistoryService": "patchbay.agents.chat_history_database",
        "DatabaseSessionService": "patchbay.agents.sessions.database",
        "Event": "patchbay.agents.content",
        "EventActions": "patchbay.agents.content",
        "EventBus": "patchbay.agents.event_bus",
        "FunctionCall": "patchbay.agents.content",
        "FunctionResponse": "patchbay.agents.content",
        "GenerateContentConfig": "patchbay.agents.context",
        "InMemoryChatHistoryService": "patchbay.agents.chat_history",
        "InMemorySessionService": "patchbay.agents.sessions.memory",
        "InvocationContext": "patchbay.agents.context",
        "LlmAgent": "patchbay.agents.llm_agent",
        "LlmRequest": "patchbay.agents.callbacks",
        "LlmResponse": "patchbay.agents.callbacks",
        "LoopAgent": "patchbay.agents.workflow",
        "ParallelAgent": "patchbay.agents.workflow",
        "Part": "patchbay.agents.content",
        "ReadonlyContext": "patchbay.agents.context",
        "RunConfig": "patchbay.agents.context",
        "RunEvents": "patchbay.agents.runner",
        "Runner": "patchbay.agents.runner",
        "SequentialAgent": "patchbay.agents.workflow",
        "Session": "patchbay.agents.sessions.log",
        "ToolProgress": "patchbay.agents.content",
        "TransferToAgentTool": "patchbay.agents.agent_tools",
        "UserOutput": "patchbay.agents.content",
        "create_history_tool": "patchbay.agents.chat_history",
        "exit_loop": "patchbay.agents.workflow",
        "history_tool": "patchbay.agents.chat_history",
    },
)
