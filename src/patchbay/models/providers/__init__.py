"""The providers that are known by name, one small file each, and what is common to all others."""

from patchbay.models.providers.other import OTHER
from patchbay.models.providers.quirks import Endpoint, Provider
from patchbay.models.providers.table import PROVIDERS, provider_at, provider_named

__all__ = ["OTHER", "PROVIDERS", "Endpoint", "Provider", "provider_at", "provider_named"]
