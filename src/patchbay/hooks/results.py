"""A tool's result as a hook gives it: read, and what it means by members that there are not.

What lives here: hooks of this program. What does not: the wire's words for the same (``process.answers``).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from patchbay.hooks.decisions import Respond
from patchbay.tools.output import ToolOutput, changed_output

if TYPE_CHECKING:
    from patchbay.hooks.chains import Mounted

MEMBERS: Final = (
    "for_llm", "for_user", "silent", "is_error", "is_async", "media", "artifact_tags", "response_handled",
)  # fmt: skip


class NoOutputError(TypeError):
    """What a hook gave is no result of a tool."""


def output_of(each: Mounted, before: ToolOutput, given: Any) -> ToolOutput:
    """Return ``before`` with what a hook has given for it. Members that there are not are passed over, and complained about.

    Raises NoOutputError for members of a wrong type, and where nothing is left that says what the model is to be shown.
    """
    if isinstance(given, type):
        raise NoOutputError(f"a tool's result must be an object or a text, not the class {given.__name__}")
    unknown = [name for name in given if name not in MEMBERS] if isinstance(given, Mapping) else []
    for name in unknown:
        words = "gave a result with %.99r, which means nothing there: %s"
        each.complain(words, name, _meant(name), kind=str(name)[:99])
    if (
        unknown
        and "for_llm" not in given
        and (len(unknown) == len(given) or any("'for_llm'" in _meant(name) for name in unknown))
    ):
        raise NoOutputError(f"a tool's result without for_llm, with {', '.join(map(repr, unknown)):.99} in its place")
    try:
        return changed_output(before, given)
    except TypeError as error:
        raise NoOutputError(str(error)) from None


def respond_with(each: Mounted, decision: Any) -> ToolOutput:
    """Return the result of a hook's own tool. Raises NoOutputError where it has not answered with one."""
    if not isinstance(decision, Respond):
        raise NoOutputError("the call was not answered")
    return output_of(each, ToolOutput(), decision.result)


def _meant(name: Any) -> str:
    near = difflib.get_close_matches(str(name).lower(), MEMBERS, n=1, cutoff=0.8)
    return f"is {near[0]!r} meant?" if near else f"there are {', '.join(MEMBERS)}"
