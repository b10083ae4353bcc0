"""Models: how tools reach a model and how its calls come back, whatever the model's server can do.

``exchange`` is one request without I/O: ``request`` builds what is sent, ``stream`` and ``completion`` read the answer,
``policy`` checks it, ``capabilities`` keeps what was learned of the model. ``exchange_driver`` runs it over a server;
``wrap`` puts it under an ``openai`` client.

``chat_model`` is what the loop talks to. ``openai`` and ``gemini`` are the wires behind it, ``providers`` the particulars of each
server, ``tool_encoder`` the tools as it takes them. ``resolve`` makes a model from its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.models.chat_model import ChatModel, ChatRequest, ModelEvent, ModelReply
    from patchbay.models.gemini import GeminiChatModel
    from patchbay.models.openai import OpenAIChatModel
    from patchbay.models.resolve import resolve_model

__all__ = ["ChatModel", "ChatRequest", "GeminiChatModel", "ModelEvent", "ModelReply", "OpenAIChatModel", "resolve_model"]

__getattr__ = lazy_exports(
    __name__,
    {
        "ChatModel": "patchbay.models.chat_model",
        "ChatRequest": "patchbay.models.chat_model",
        "GeminiChatModel": "patchbay.models.gemini",
        "ModelEvent": "patchbay.models.chat_model",
        "ModelReply": "patchbay.models.chat_model",
        "OpenAIChatModel": "patchbay.models.openai",
        "resolve_model": "patchbay.models.resolve",
    },
)
