"""What goes wrong between a plugin, its host and the server. Nothing here does any work.

PatchbayError
├── PluginError             RuntimeError   "plugin_error"      a plugin that cannot be loaded, or an Err that was unwrapped
│   ├── EntryConflictError  ValueError     "entry_conflict"    a plugin has a tool of this name already
│   └── RegistrationError                  "tool_refused"      the server will not have a tool
└── FrameError              ValueError     "bad_frame"         what came over the socket is no message of ours
"""

from __future__ import annotations

from patchbay.errors import PatchbayError


class PluginError(PatchbayError, RuntimeError):
    """A plugin that cannot be loaded, or an ``Err`` that was unwrapped."""

    code = "plugin_error"


class EntryConflictError(PluginError, ValueError):
    """The plugin has a tool of this name already: unregister that one first."""

    code = "entry_conflict"

    def __init__(self, name: str, *, what: str = "tool") -> None:
        super().__init__(f"The plugin has a {what} {name!r} already.")
        self.name = name


class RegistrationError(PluginError):
    """The server will not have a tool; the message says why, as far as the server did."""

    code = "tool_refused"

    def __init__(self, name: str, *, reason: str) -> None:
        super().__init__(f"Tool {name!r} was refused: {reason or 'no reason was given'}")
        self.name = name
        self.reason = reason


class FrameError(PatchbayError, ValueError):
    """What came over the socket is no message of ours, is too long, or is not the next one. The connection is of no use."""

    code = "bad_frame"
