"""What it means that an interceptor fails: nothing, or a no where it fails closed (``HookManager.mount``). Both are logged.

What lives here: hooks that raise, take too long, or answer what cannot be an answer. What does not: approvers, who fail closed
whatever is said (``turn``).
"""

from __future__ import annotations

from typing import Any, Final

from patchbay.errors import HookAbortError, HookFailedError, ToolDeniedError
from patchbay.hooks.asked import Asked
from patchbay.hooks.bounded import HookTimeoutError
from patchbay.hooks.chains import Mounted

DENIED: Final = "Tool execution denied by hook"


def has_failed(each: Mounted, point: str, error: BaseException, asked: Asked | None) -> None:
    """Log what a hook raised. Raises what ``_close`` does."""
    log_failure(each, point, error)
    _close(each, point, "timed out" if isinstance(error, HookTimeoutError) else "failed", asked)


def log_failure(each: Mounted, point: str, error: BaseException) -> None:
    """Log what a hook raised."""
    kind = type(error).__name__
    each.complain("failed at %s: %s: %s", point, kind, error, kind=f"{point} {kind}")


def has_answered_wrongly(each: Mounted, point: str, error: Exception, asked: Asked | None, *, in_its_place: bool = False) -> None:
    """Log what is wrong with an answer, or with one ``in_its_place``: the tool's. Raises what ``_close`` does."""
    so = "that counts as a no" if each.fail_closed else "the tool is run" if in_its_place else "its answer is passed over"
    what = f"a call of {asked.tool.name!r}" if asked is not None and in_its_place else point
    each.complain("answered %s wrongly: %s; %s", what, error, so, kind=what)
    _close(each, point, "failed", asked)


def has_answered_what_is_not_known(each: Mounted, point: str, answer: Any, asked: Asked | None) -> None:
    """Log an answer that its point does not have. Raises what ``_close`` does."""
    so = "it counts as a no" if each.fail_closed else "passed over"
    if isinstance(answer, type):
        log_class(each, point, answer, f": {so}")
    else:
        each.complain("answered %s with %.99r, which is not known there: %s", point, answer, so, kind=point)
    _close(each, point, "failed", asked)


def log_class(each: Mounted, point: str, answer: type, so: str = "") -> None:
    """Log that a hook answered the class of a decision."""
    name = answer.__name__
    each.complain("answered %s with the class %s, and not with one (%s(...))%s", point, name, name, so, kind=point)


def _close(each: Mounted, point: str, how: str, asked: Asked | None) -> None:
    """Raise ToolDeniedError, HookFailedError or HookAbortError, by the point, where a hook fails closed."""
    if not each.fail_closed:
        return
    words = f'hook "{each.name}" {how}'
    if asked is None:
        raise HookAbortError(words, hook=each.name, point=point, hard=False)
    if point == "before_tool":
        asked.decided.note(each.name, point, "denied", words)
        raise ToolDeniedError(DENIED, words, tool_name=asked.tool.name, by=each.name)
    asked.decided.note(each.name, point, "withheld the result", words)
    raise HookFailedError(f"the result is withheld: {words}.", tool_name=asked.tool.name)
