"""``WS /api/sessions/{role}``: a browser or a script holds a session with a model, which has the role's tools.

What lives here: what a client asks for (``asked``), which session that is (``making``), what goes over the socket (``frames``),
one socket and its session (``held``; ``early``, before that is there), whose turn it is at a role (``door``), and what operators
are told (``log``, ``keys``).
What does not: who may come in (``patchbay.server.tools.guard``), and the sessions themselves (``patchbay.realtime``).
"""

from __future__ import annotations

from patchbay.server.sessions.door import SessionsDoor
from patchbay.server.sessions.settings import SessionsSettings

__all__ = ["SessionsDoor", "SessionsSettings"]
