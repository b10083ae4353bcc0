"""Any other OpenAI-compatible server: nothing is known of it, so what it sent is sent back, and the rest is learnt."""

from __future__ import annotations

from patchbay.models.providers.quirks import SENT_BACK, Provider

OTHER = Provider(name="", sent_back=SENT_BACK)
