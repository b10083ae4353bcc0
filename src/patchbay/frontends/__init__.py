"""Other vendors' chat protocols over chat completions: requests are decoded into its bodies, answers encoded from its parts.

    POST /v1/messages                                       Anthropic Messages
    POST /v1/responses                                      OpenAI Responses
    POST /v1beta/models/MODEL:generateContent               Gemini, also :streamGenerateContent

Codecs without I/O: the server chooses the front-end by a request's path, and the exchange makes calls work.
"""

from patchbay.frontends.anthropic import AnthropicMessages
from patchbay.frontends.base import DecodedRequest, Frontend
from patchbay.frontends.gemini import GenerateContent
from patchbay.frontends.responses import OpenAIResponses, StoredResponse

__all__ = ["AnthropicMessages", "DecodedRequest", "Frontend", "GenerateContent", "OpenAIResponses", "StoredResponse"]
