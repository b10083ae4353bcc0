"""The other end of the sessions, in a process of its own: prints its URL, and ends with its standard input.

Each case is a session of its own, on a fake of OpenAI's server, whose model calls 0, 1 or 16 tools in a turn and then says one word.
"""

from __future__ import annotations

import contextlib
import sys

from bench.calls import cases
from patchbay.testing.realtime import Call, FakeOpenAI

if __name__ == "__main__":
    turns = int(sys.argv[1])
    with contextlib.ExitStack() as stack:
        for calls in map(int, sys.argv[2:]):
            called = [Call(cases.NAME, cases.arguments(number)) for number in range(calls)]
            fake = stack.enter_context(FakeOpenAI([step for _ in range(turns) for step in (called or "well", "done")]))
            print(fake.url, flush=True)
        sys.stdin.read()
