"""Models: how tools reach a model and how its calls come back, whatever the model's server can do.

``exchange`` is the whole of one request, without I/O: ``request`` says what is sent, ``answering`` reads a stream,
``completion`` a whole answer, ``choice`` holds them against ``tool_choice``, ``modes`` remembers what was learnt. ``wrap`` puts
it under an ``openai`` client, ``exchange_driver`` drives it over any server.

``chat`` is what the loop talks to. ``openai`` and ``gemini`` are the two wires behind it, ``providers`` what is particular to a
server, ``offer`` the tools as it takes them, ``learnt`` what it refused. ``resolve`` makes a model from its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.models.chat import ChatModel, ChatRequest, ModelEvent, ModelReply
    from patchbay.models.gemini import GeminiChatModel
    from patchbay.models.openai import OpenAIChatModel
    from patchbay.models.resolve import resolve_model

__all__ = ["ChatModel", "ChatRequest", "GeminiChatModel", "ModelEvent", "ModelReply", "OpenAIChatModel", "resolve_model"]

__getattr__ = lazy_exports(
    __name__,
    {
        "ChatModel": "patchbay.models.chat",
        "ChatRequest": "patchbay.models.chat",
        "GeminiChatModel": "patchbay.models.gemini",
        "ModelEvent": "patchbay.models.chat",
        "ModelReply": "patchbay.models.chat",
        "OpenAIChatModel": "patchbay.models.openai",
        "resolve_model": "patchbay.models.resolve",
    },
)
