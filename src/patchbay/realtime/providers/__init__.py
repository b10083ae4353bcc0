"""Wire protocols of the providers."""

from __future__ import annotations
