"""What goes wrong between a hook's process and its host. Nothing here does any work.

PatchbayError
└── HookProcessError        RuntimeError   "hook_process"   it is not there, has gone, or does not read
    └── HookReplyError      ValueError     "hook_reply"     what it answered is an error, or no answer to what it was asked
        └── UnreadableReplyError                            what it wrote is no reply at all

None of them ends a turn: interceptors that fail are passed over, approvers that fail have said no (``patchbay.hooks.turn``).
"""

from __future__ import annotations

from patchbay.errors import PatchbayError


class HookProcessError(PatchbayError, RuntimeError):
    """The process cannot be asked, or will not answer any more."""

    code = "hook_process"


class HookReplyError(HookProcessError, ValueError):
    """The process answered with an error, or with what cannot be an answer."""

    code = "hook_reply"


class UnreadableReplyError(HookReplyError):
    """The process wrote what is no reply, for a request whose id can be read. ``why`` says what it is, ``line`` its beginning."""

    def __init__(self, why: str, line: str) -> None:
        super().__init__(f"it answered with a line that is no reply: {why}")
        self.why = why
        self.line = line
