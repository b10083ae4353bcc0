"""Google's Gemini: spoken to natively, or by a URL through its OpenAI-compatible endpoint.

Either way its thinking models sign their thoughts. The signature comes with a call (``extra_content.google.thought_signature``)
and the next round is refused without it. The native wire is translated in ``patchbay.models.geminirequest`` and ``geminianswer``.
"""

from __future__ import annotations

from dataclasses import replace

from patchbay.models.providers.quirks import Endpoint, Provider, system_for_developer
from patchbay.schema.dialects import DIALECTS
from patchbay.types import ToolSpec

_NATIVE_URL = "https://generativelanguage.googleapis.com"
_COMPATIBLE_URL = f"{_NATIVE_URL}/v1beta/openai/"

# The body of a request is one of chat completions up to the wire, also where that is Gemini's own.
_DIALECT = replace(DIALECTS["gemini"], shape=ToolSpec.to_openai)

GEMINI = Provider(
    name="gemini",
    other_names=("google",),
    # The SDK's own order: where both are set, the first one counts.
    endpoints=(Endpoint(_NATIVE_URL, "GOOGLE_API_KEY"), Endpoint(_NATIVE_URL, "GEMINI_API_KEY")),
    base_url_variable="GOOGLE_GEMINI_BASE_URL",
    dialect=_DIALECT,
    sdk="google-genai",
)

GEMINI_COMPATIBLE = Provider(
    name="gemini-compatible",
    endpoints=(Endpoint(_COMPATIBLE_URL, "GOOGLE_API_KEY"), Endpoint(_COMPATIBLE_URL, "GEMINI_API_KEY")),
    hosts=("generativelanguage.googleapis.com",),
    dialect=_DIALECT,
    sent_back=frozenset({"extra_content"}),
    prepare=system_for_developer,
)
