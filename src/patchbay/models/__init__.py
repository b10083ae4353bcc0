"""Models: send tools to a model and read its calls, natively or as text.

``exchange`` is one request without I/O: ``request`` reads the client's, ``upstream_request`` chooses what of it is sent,
``answer_reader`` and ``choice`` read the answer, ``policy`` checks it, ``encoder`` writes the client's. ``refusals`` reads
errors, ``capabilities`` and ``roles`` have what a server supports. ``exchange_driver`` runs all of it over a server; ``wrap``
puts it under an ``openai`` client.

``chat_model`` is the interface of the loop; ``openai`` and ``gemini`` implement it. ``providers`` has the differences between
servers as data, ``tool_encoder`` encodes tools for them. ``resolve`` makes a model from its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.models.chat_model import ChatModel as ChatModel
    from patchbay.models.chat_model import ChatRequest as ChatRequest
    from patchbay.models.chat_model import ModelEvent as ModelEvent
    from patchbay.models.chat_model import ModelReply as ModelReply
    from patchbay.models.gemini import GeminiChatModel as GeminiChatModel
    from patchbay.models.openai import OpenAIChatModel as OpenAIChatModel
    from patchbay.models.resolve import resolve_model as resolve_model


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "chat_model": "ChatModel ChatRequest ModelEvent ModelReply",
        "gemini": "GeminiChatModel",
        "openai": "OpenAIChatModel",
        "resolve": "resolve_model",
    },
)
