"""Agents: a model with an instruction and tools, agents made of agents, their sessions and events.

LlmAgent                                     a model with an instruction and tools
SequentialAgent, LoopAgent, ParallelAgent    agents in order, in a loop, in parallel
AgentTool                                    an agent as a tool
Runner, RunConfig                            takes a user's message, yields events
InMemorySessionService, DatabaseSessionService
EventBus                                     publishes what happens in runs (topics: ``patchbay.agents.event_bus``)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.agents.agent_tools import AgentTool as AgentTool
    from patchbay.agents.agent_tools import TransferToAgentTool as TransferToAgentTool
    from patchbay.agents.base import BaseAgent as BaseAgent
    from patchbay.agents.base import CallbackContext as CallbackContext
    from patchbay.agents.base import InvocationContext as InvocationContext
    from patchbay.agents.base import ReadonlyContext as ReadonlyContext
    from patchbay.agents.callbacks import LlmRequest as LlmRequest
    from patchbay.agents.callbacks import LlmResponse as LlmResponse
    from patchbay.agents.chat_history import BaseChatHistoryService as BaseChatHistoryService
    from patchbay.agents.chat_history import ChatMessage as ChatMessage
    from patchbay.agents.chat_history import InMemoryChatHistoryService as InMemoryChatHistoryService
    from patchbay.agents.chat_history import create_history_tool as create_history_tool
    from patchbay.agents.chat_history import history_tool as history_tool
    from patchbay.agents.chat_history_database import DatabaseChatHistoryService as DatabaseChatHistoryService
    from patchbay.agents.content import Blob as Blob
    from patchbay.agents.content import Content as Content
    from patchbay.agents.content import Event as Event
    from patchbay.agents.content import EventActions as EventActions
    from patchbay.agents.content import FunctionCall as FunctionCall
    from patchbay.agents.content import FunctionResponse as FunctionResponse
    from patchbay.agents.content import Part as Part
    from patchbay.agents.content import ToolProgress as ToolProgress
    from patchbay.agents.content import UserOutput as UserOutput
    from patchbay.agents.event_bus import BusEvent as BusEvent
    from patchbay.agents.event_bus import EventBus as EventBus
    from patchbay.agents.llm_agent import Agent as Agent
    from patchbay.agents.llm_agent import LlmAgent as LlmAgent
    from patchbay.agents.run_config import GenerateContentConfig as GenerateContentConfig
    from patchbay.agents.run_config import RunConfig as RunConfig
    from patchbay.agents.runner import RunEvents as RunEvents
    from patchbay.agents.runner import Runner as Runner
    from patchbay.agents.sessions.base import BaseSessionService as BaseSessionService
    from patchbay.agents.sessions.database import DatabaseSessionService as DatabaseSessionService
    from patchbay.agents.sessions.log import Session as Session
    from patchbay.agents.sessions.memory import InMemorySessionService as InMemorySessionService
    from patchbay.agents.workflow import LoopAgent as LoopAgent
    from patchbay.agents.workflow import ParallelAgent as ParallelAgent
    from patchbay.agents.workflow import SequentialAgent as SequentialAgent
    from patchbay.agents.workflow import exit_loop as exit_loop

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "agent_tools": "AgentTool TransferToAgentTool",
        "base": "BaseAgent CallbackContext InvocationContext ReadonlyContext",
        "callbacks": "LlmRequest LlmResponse",
        "chat_history": "BaseChatHistoryService ChatMessage InMemoryChatHistoryService create_history_tool history_tool",
        "chat_history_database": "DatabaseChatHistoryService",
        "content": "Blob Content Event EventActions FunctionCall FunctionResponse Part ToolProgress UserOutput",
        "event_bus": "BusEvent EventBus",
        "llm_agent": "Agent LlmAgent",
        "run_config": "GenerateContentConfig RunConfig",
        "runner": "RunEvents Runner",
        "sessions.base": "BaseSessionService",
        "sessions.database": "DatabaseSessionService",
        "sessions.log": "Session",
        "sessions.memory": "InMemorySessionService",
        "workflow": "LoopAgent ParallelAgent SequentialAgent exit_loop",
    },
)
