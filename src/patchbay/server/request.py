"""One request on its way through the proxy: what belongs to it, and what it uses. Data, no behaviour to speak of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchbay.server.headers import Headers, OwnHeaders, upward
from patchbay.server.journal import Capture

if TYPE_CHECKING:
    from patchbay.server.body import Receive
    from patchbay.server.journal import Journal
    from patchbay.server.redaction import Redactor
    from patchbay.server.reply import Reply
    from patchbay.server.settings import ProxySettings
    from patchbay.server.upstream import Upstream
    from patchbay.server.watch import Watch


@dataclass(slots=True)
class Request:
    """A request that has passed the door's checks. ``id`` joins its lines in the log."""

    id: str
    scope: Any
    receive: Receive
    reply: Reply
    watch: Watch
    upstream: Upstream
    settings: ProxySettings
    redact: Redactor
    journal: Journal | None

    @property
    def own_key(self) -> bool:
        """Whether the upstream is asked with the proxy's own key."""
        return self.settings.upstream_key is not None

    def upward(self, own: OwnHeaders | None = None) -> Headers:
        """Return the headers for the upstream, with the key that it is to see. ``own`` stand above all others."""
        settings = self.settings
        # A bearer that opened this proxy is the proxy's own secret and none of the upstream's business.
        with_keys = settings.upstream_key is None and settings.api_key is None
        fixed = self.upstream.own
        return upward(self.scope["headers"], with_keys=with_keys, own={**fixed, **own} if own else fixed)

    def capture(self) -> Capture | None:
        """Return a place to collect the answer for the log, where there is a log."""
        return Capture() if self.journal is not None else None
