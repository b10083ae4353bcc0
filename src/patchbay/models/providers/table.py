"""The table of providers: by name, and by the host of a URL. A new provider is one file beside this one and one line here."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from patchbay.models.providers.gemini import GEMINI, GEMINI_COMPATIBLE
from patchbay.models.providers.glm import GLM
from patchbay.models.providers.openai import OPENAI
from patchbay.models.providers.other import OTHER
from patchbay.models.providers.quirks import Provider
from patchbay.models.providers.qwen import QWEN
from patchbay.models.providers.stepfun import STEPFUN

PROVIDERS: Final = (OPENAI, GEMINI, GLM, QWEN, STEPFUN)
"""Those that ``provider/model`` may name."""

_NAMED: Final = {name: provider for provider in PROVIDERS for name in (provider.name, *provider.other_names)}
_HOSTED: Final = {host: provider for provider in (*PROVIDERS, GEMINI_COMPATIBLE) for host in provider.hosts}


def provider_named(name: str) -> Provider | None:
    """The provider of this name, in any case; None where there is none."""
    return _NAMED.get(name.lower())


def provider_at(url: str) -> Provider:
    """The provider whose server a URL of an OpenAI-compatible API is on, or OTHER."""
    return _HOSTED.get(urlsplit(url).hostname or "", OTHER)
