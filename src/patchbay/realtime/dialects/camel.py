"""Members of Google's frames: in camelCase on its own wire; some servers and proxies write them in snake_case, as its SDK does.

What lives here: reading them by either name. What does not: what they mean (``gemini``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from patchbay.realtime.dialects import reading

_LONGEST: Final = 86_400.0
_MOST_DIGITS: Final = 32


def _snake(name: str) -> str:
    return re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", name)


_SNAKE: Final[Mapping[str, str]] = {
    name: _snake(name)
    for name in (
        *("setupComplete", "serverContent", "toolCall", "toolCallCancellation", "usageMetadata", "goAway", "timeLeft"),
        *("sessionResumptionUpdate", "newHandle", "modelTurn", "inlineData", "mimeType", "turnComplete", "turnCompleteReason"),
        *("inputTranscription", "outputTranscription"),
    )
}


def value(holder: dict[str, Any], name: str) -> Any:
    """A member by either name, None where there is none."""
    found = holder.get(name)
    return holder.get(_SNAKE.get(name, name)) if found is None else found


def has(holder: dict[str, Any], name: str) -> bool:
    """Whether there is such an object, be it an empty one."""
    return isinstance(value(holder, name), dict)


def member(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """An object, an empty one where there is none."""
    found = value(holder, name)
    return found if isinstance(found, dict) else {}


def text(holder: dict[str, Any], name: str) -> str:
    """A text that can be written anywhere, "" where there is none."""
    return reading.text(holder, name) or reading.text(holder, _SNAKE.get(name, name))


def strings(holder: dict[str, Any], name: str) -> tuple[str, ...]:
    """The texts in a list."""
    found = holder.get(name)
    return tuple(one for one in found if isinstance(one, str) and one) if isinstance(found, list) else ()


def seconds(duration: Any) -> float:
    """A duration as protocol buffers write it in JSON, "9.5s"; 0.0, at once, where it cannot be read."""
    if isinstance(duration, dict):
        duration = duration.get("seconds")
    if isinstance(duration, bool) or not isinstance(duration, int | float | str):
        return 0.0
    try:
        found = float(duration[:_MOST_DIGITS].rstrip("s") if isinstance(duration, str) else duration)
    except (ValueError, OverflowError):
        return 0.0
    return min(max(found, 0.0), _LONGEST) if math.isfinite(found) else 0.0
