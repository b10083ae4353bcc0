"""The errors of plugins and their host.

PatchbayError
├── PluginError             RuntimeError   "plugin_error"      a plugin that cannot be loaded, or an Err that was unwrapped
│   ├── EntryConflictError  ValueError     "entry_conflict"    a plugin has a tool of this name already
│   └── RegistrationError                  "tool_refused"      the server rejects a tool
└── FrameError              ValueError     "bad_frame"         invalid data on the socket
"""

from __future__ import annotations

from patchbay.errors import PatchbayError


class PluginError(PatchbayError, RuntimeError):
    """A plugin that cannot be loaded, or an ``Err`` that was unwrapped."""

    code = "plugin_error"


class EntryConflictError(PluginError, ValueError):
    """The plugin already has a tool of this name: unregister that one first."""

    code = "entry_conflict"

    def __init__(self, name: str, *, what: str = "tool") -> None:
        super().__init__(f"The plugin has a {what} {name!r} already.")
        self.name = name


class RegistrationError(PluginError):
    """The server rejects a tool; the message has its reason."""

    code = "tool_refused"

    def __init__(self, name: str, *, reason: str) -> None:
        super().__init__(f"Tool {name!r} was refused: {reason or 'no reason was given'}")
        self.name = name
        self.reason = reason


class FrameError(PatchbayError, ValueError):
    """Data on the socket is not a message, or is too long. The connection cannot be used further."""

    code = "bad_frame"
