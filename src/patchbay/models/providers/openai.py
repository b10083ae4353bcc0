"""OpenAI itself: the measure of the others, and strict about what it does not know."""

from __future__ import annotations

from patchbay.models.providers.quirks import Body, Endpoint, Provider, renamed
from patchbay.schema.dialects import DIALECTS


def _limit(body: Body) -> Body:
    """Its reasoning models refuse ``max_tokens``; all of its chat models take the newer name."""
    return renamed(body, "max_tokens", "max_completion_tokens")


OPENAI = Provider(
    name="openai",
    endpoints=(Endpoint("https://api.openai.com/v1", "OPENAI_API_KEY"),),
    base_url_variable="OPENAI_BASE_URL",
    hosts=("api.openai.com",),
    strict_dialect=DIALECTS["openai_strict"],
    prepare=_limit,
)
