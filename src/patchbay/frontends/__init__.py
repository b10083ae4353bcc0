"""Other vendors' chat protocols over the chat-completions core: requests are decoded into its bodies, its answers encoded.

    POST /v1/messages                                       Anthropic Messages
    POST /v1/responses                                      OpenAI Responses
    POST /v1beta/models/MODEL:generateContent               Gemini, also :streamGenerateContent

Codecs without I/O: the server finds the front-end of a request by its path, and everything that makes calls work is the core's.
"""

from patchbay.frontends.anthropic import AnthropicMessages
from patchbay.frontends.base import DecodedRequest, Frontend
from patchbay.frontends.gemini import GenerateContent
from patchbay.frontends.responses import OpenAIResponses, StoredResponse

__all__ = ["AnthropicMessages", "DecodedRequest", "Frontend", "GenerateContent", "OpenAIResponses", "StoredResponse"]
