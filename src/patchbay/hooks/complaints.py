"""What is wrong with a hook, as the log is told: at once, and then less and less often.

A hook that fails fails at every call, perhaps thousands of times an hour: the log is to say so, and to hold other things too.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final

MOST_KINDS: Final = 50
"""How many kinds of complaints are counted apart: what a hook writes can make new ones without end. All others count as one."""

_OTHERS: Final = "others"
_logger = logging.getLogger("patchbay.hooks")


class Complaints:
    """Those about one hook. Each kind is logged the first time, the tenth, the hundredth, and so on."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How often each kind has come up."""

    def say(self, words: str, *about: Any, kind: str = "", error: Exception | None = None) -> None:
        """Warn with ``words``, in which ``about`` stands for the %s, if it is time to hear of them again.

        They are a kind of their own, or with ``kind`` as many as there are of those. With ``error`` it is one, with its trace.
        """
        kind = f"{words} {kind}"
        if kind not in self.counts and len(self.counts) >= MOST_KINDS:
            kind = _OTHERS
        self.counts[kind] += 1
        count = self.counts[kind]
        if str(count).rstrip("0") != "1":
            return
        if count > 1:
            words, about = f"{words} (%d times by now)", (*about, count)
        _logger.log(logging.WARNING if error is None else logging.ERROR, words, *about, exc_info=error)
