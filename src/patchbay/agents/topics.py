"""What runs tell on the event bus: the topics, and what their data hold.

| topic | when | data |
|---|---|---|
| session.created | a run begins a new session | session_id, user_id, title |
| session.updated | a user's message was recorded | session_id, user_id |
| agent.start | an agent begins | agent, model |
| llm.request | a model is about to be asked | model |
| llm.stream.chunk | a piece of its text, where the run streams | text |
| llm.response | its answer is whole | model, usage, finish_reason |
| llm.error | there is none | error (a code), message |
| tool.call | a call is about to be carried out | tool, args, call_id |
| tool.progress | a tool says how far it is | tool, call_id, message, fraction, data |
| tool.result | a call has settled | tool, response, call_id |
| tool.error | one has failed; tool.result comes too | tool, error, code, call_id |
| agent.transfer | an agent hands over | from, to |
| agent.error | a run or an agent ends without an answer | agent, error (a code), message |
| agent.response | an agent has answered | agent, text, session_id |
"""

from __future__ import annotations

from typing import Final

SESSION_CREATED: Final = "session.created"
SESSION_UPDATED: Final = "session.updated"
AGENT_START: Final = "agent.start"
AGENT_TRANSFER: Final = "agent.transfer"
AGENT_RESPONSE: Final = "agent.response"
AGENT_ERROR: Final = "agent.error"
LLM_REQUEST: Final = "llm.request"
LLM_RESPONSE: Final = "llm.response"
LLM_STREAM_CHUNK: Final = "llm.stream.chunk"
LLM_ERROR: Final = "llm.error"
TOOL_CALL: Final = "tool.call"
TOOL_PROGRESS: Final = "tool.progress"
TOOL_RESULT: Final = "tool.result"
TOOL_ERROR: Final = "tool.error"
