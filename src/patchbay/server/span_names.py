"""Names of spans' attributes, as OpenTelemetry's semantic conventions have them.

Revision 1.44.0: https://github.com/open-telemetry/semantic-conventions/tree/v1.44.0/docs/gen-ai (agents, chat, tools, MCP).
Those of generative AI are in development there: a newer revision may rename them. ``patchbay.*`` are this project's own.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
INVOKE_AGENT: Final = "invoke_agent"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
MCP_METHOD: Final = "mcp.method.name"
ERROR_TYPE: Final = "error.type"
STATUS_CODE: Final = "http.response.status_code"

REQUEST_ID: Final = "patchbay.request.id"
PROTOCOL: Final = "patchbay.protocol"
TOOL_MODE: Final = "patchbay.tools.mode"
CONSTRAINT: Final = "patchbay.constraint"
PURPOSE: Final = "patchbay.attempt.purpose"
REASON: Final = "patchbay.attempt.reason"
TOOL_SOURCE: Final = "patchbay.tool.source"
DECISIONS: Final = "patchbay.tool.decisions"
