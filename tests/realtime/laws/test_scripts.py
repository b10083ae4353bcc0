"""Random sessions for each provider: in any order of events, no rule of the protocol is broken and nothing is lost.

10 sessions for each wire (Gemini has two), the same in each run, and 250 others with ``--hypothesis-profile nightly``. A session is
drawn from a number (``drawn(Random(number), provider, newer=newer)`` draws it again). Ten at a time run side by side in one event
loop, as the sessions of a program do. Failures are not shrunk: when things happen depends on the machine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from patchbay.testing.realtime import FakeOpenAI
from support.realtime_fakes import FakeGemini, FakeGLM, FakeQwen, FakeStepFun
from support.repeated import examples, repeated

from .course import Course, drawn, played_out

TOGETHER = 10


async def play(courses: Mapping[int, Course]) -> None:
    """Play courses concurrently, and check that they leave no task."""
    played = await asyncio.gather(*map(played_out, courses.values()), return_exceptions=True)
    assert [] == [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert {} == {number: error for number, error in zip(courses, played, strict=True) if error is not None}


def threads() -> set[threading.Thread]:
    """The threads of this process, without the shared idle ones of sync tools."""
    return {thread for thread in threading.enumerate() if thread.name != "patchbay-tool"}


@pytest.mark.parametrize(
    ("provider", "newer"),
    [(FakeOpenAI, False), (FakeQwen, False), (FakeGLM, False), (FakeStepFun, False), (FakeGemini, False), (FakeGemini, True)],
)
@given(numbers=st.sets(st.integers(0, 2**32 - 1), min_size=TOGETHER, max_size=TOGETHER))
@repeated(max_examples=min(examples(1), 25), phases=(Phase.explicit, Phase.generate))
def test_each_call_has_one_result_and_nothing_remains_for_any_script(provider, newer, numbers):
    before = threads()
    asyncio.run(play({number: drawn(Random(number), provider, newer=newer) for number in sorted(numbers)}))
    assert set() == threads() - before  # those of other tests may end meanwhile
