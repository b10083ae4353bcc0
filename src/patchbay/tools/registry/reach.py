"""Who may touch what: reserved sources, secrets, and the tools that no door reaches."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from patchbay.tools.registry.registration import Registration

BUILTIN: Final = "builtin"
"""The source of tools that are part of the program. Only code inside of it registers or removes them."""

RESERVED: Final = (BUILTIN, "plugin:*")
"""Sources that not everybody may claim; ``*`` at the end stands for anything."""


@dataclass(frozen=True)
class Reach:
    """How far a caller reaches.

    ``inside`` is code of this program, which may do anything. ``trusted`` is a caller who has shown the token: the builtins alone
    are out of reach. Everybody else is kept from reserved sources, and, with ``needs_secret``, from registrations whose
    ``secret`` they do not know.
    """

    trusted: bool
    inside: bool
    secret: str | None
    needs_secret: bool
    reserved: tuple[str, ...]

    def may_claim(self, source: str) -> bool:
        """Whether the caller may register and clear tools as ``source``."""
        if self.inside:
            return True
        return source != BUILTIN and (self.trusted or not self._is_reserved(source))

    def may_touch(self, registration: Registration) -> bool:
        """Whether the caller may replace or remove this registration."""
        return self.may_claim(registration.source) and (not self._lacks_secret(registration))

    def _lacks_secret(self, registration: Registration) -> bool:
        if self.inside or self.trusted or not self.needs_secret or registration.secret is None:
            return False
        return not hmac.compare_digest(_bytes(self.secret or ""), _bytes(registration.secret))

    def _is_reserved(self, source: str) -> bool:
        return any(source.startswith(each[:-1]) if each.endswith("*") else source == each for each in self.reserved)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
