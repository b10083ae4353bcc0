"""One response at a time: when the model may be asked to answer, and what has taken too long.

What lives here: a state machine with the time as an argument. What does not: frames and timers (``talk``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

State: TypeAlias = Literal["free", "asked", "muted", "under_way", "cancelling"]
Overdue: TypeAlias = Literal["created", "done", "cancel"]


class Arbiter:
    """Whether a response is wanted, was asked for, or is under way.

    ``want`` makes a wish and ``next`` grants it: where that says so, the model is to be asked now. Limits are in seconds;
    ``deadline`` is when ``overdue`` is to be asked, None for never.
    """

    def __init__(self, *, created: float, done: float, cancel: float) -> None:
        self._created = created
        self._done = done
        self._cancel = cancel
        self.state: State = "free"
        self.wanted = False
        """A response is wanted as soon as the one that is under way is over."""
        self.deadline: float | None = None
        self._unwanted = False  # what was asked for is to be cancelled as soon as it begins
        self._left = False  # a wish, to what the server begins by itself

    @property
    def is_owed(self) -> bool:
        """Whether a response is to come that has not begun."""
        return self.wanted or self._left or (self.state == "asked" and not self._unwanted)

    def want(self, *, any_will_do: bool = False) -> None:
        """Wish for a response. One that was asked for and has not begun will do, unless it is to be cancelled.

        ``any_will_do``: also then, for whoever begins it has been told all that it is to answer.
        """
        if any_will_do:
            self._unwanted = False
        self.wanted = self.wanted or self.state != "asked" or self._unwanted

    def mute(self, now: float) -> None:
        """A response will begin by itself that nobody wants: it is to be cancelled then."""
        if self.state == "free" and not self.wanted:
            self.state = "muted"
            self.deadline = now + self._cancel

    def leave_it(self) -> None:
        """Wish for nothing: the server has ended what there was, and the next response that begins is one of its own."""
        self._left = self._left or self.wanted
        self.wanted = self._unwanted = False
        if self.state == "muted":
            self.ended()

    def take_it_back(self) -> None:
        """The server begins none of its own after all: what was wished for before is wished for again."""
        self.wanted, self._left = self.wanted or self._left, False

    def next(self, now: float) -> bool:
        """Return whether a response is to be asked for now; then it has been."""
        if self.state != "free" or not self.wanted:
            return False
        self.wanted = False
        self.state = "asked"
        self.deadline = now + self._created
        return True

    def began(self, now: float) -> bool:
        """A response has begun, ours or the server's own. Returns whether it is to be cancelled at once."""
        unwanted, self._unwanted = self._unwanted or self.state == "muted", False
        self._left = False
        self.state = "under_way"
        self.deadline = now + self._done
        return unwanted and self._end_it(now)

    def heard(self, now: float) -> None:
        """Something of the response has come."""
        if self.state == "under_way":
            self.deadline = now + self._done

    def ended(self) -> None:
        """The response is over."""
        self.state = "free"
        self.deadline = None
        self._unwanted = False

    def busy(self, now: float) -> None:
        """What was asked for is refused, because a response is under way: the wish waits for its end."""
        self.wanted = self.wanted or not self._unwanted
        self._unwanted = False
        if self.state == "asked":
            self.state = "under_way"
            self.deadline = now + self._done

    def refused(self) -> bool:
        """What was asked for is refused for good. Returns whether something was."""
        if self.state != "asked":
            return False
        self.ended()
        return True

    def cancel(self, now: float) -> bool:
        """Drop the wish, and end what is under way. Returns whether that is to be said now."""
        self.wanted = self._left = False
        if self.state == "asked":
            self._unwanted = True
        elif self.state == "muted":
            self.ended()  # what begins now may be to what is said next
        return self.state == "under_way" and self._end_it(now)

    def overdue(self, now: float) -> Overdue | None:
        """Return what has taken too long, if anything has. "done" is to be cancelled; the others are waited for no longer."""
        if self.deadline is None or now < self.deadline:
            return None
        if self.state == "under_way":
            self._end_it(now)
            return "done"
        late: Overdue = "created" if self.state == "asked" else "cancel"
        self.ended()
        return late

    def _end_it(self, now: float) -> bool:
        self.state = "cancelling"
        self.deadline = now + self._cancel
        return True
