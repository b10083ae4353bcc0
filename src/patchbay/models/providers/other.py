"""Any other OpenAI-compatible server: nothing is known of it, so what it sent is sent back, and the rest is learnt."""

from __future__ import annotations

from patchbay.models.providers.quirks import SENT_BACK, Provider, with_fields

OTHER = Provider(name="", prepare=with_fields(*SENT_BACK))
