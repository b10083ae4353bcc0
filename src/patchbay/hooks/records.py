"""What is written down of a call: for an audit, and for whoever counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from patchbay.hooks.views import Meta


class CallRecord(msgspec.Struct, frozen=True):  # a frozen dataclass takes five times as long to make, once for each call
    """One call that has settled, however it did.

    ``time`` is when, in seconds since 1970; ``seconds`` how long the tool ran, 0 where it did not. ``tool`` is the tool that the
    call was for in the end, ``source`` where that is from ("" for a program's own), ``digest`` that of tool and arguments: the
    one that an approval is bound to. ``decisions`` are who decided, at which point, and what, in order; ``responded_by`` is the
    hook that answered in the tool's place. ``code`` says how a call failed (``patchbay.errors``), "" for one that did not.
    ``result_chars`` is how many characters the model is shown of the result.
    """

    time: float
    meta: Meta
    context: Mapping[str, Any]
    call_id: str
    tool: str
    source: str
    digest: str
    decisions: tuple[tuple[str, str, str], ...]
    responded_by: str
    is_error: bool
    code: str
    result_chars: int
    seconds: float


Recorder: TypeAlias = Callable[[CallRecord], None]
"""Is told of a call the moment it has settled, in the event loop's thread: it must not block."""
