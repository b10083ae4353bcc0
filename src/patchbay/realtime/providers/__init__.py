"""The providers' wires, one small file each."""

from __future__ import annotations
