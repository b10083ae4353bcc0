"""Bounded effort for output that no call waits for."""

from __future__ import annotations

from hooks_process.peers import wait_until
from patchbay.hooks.process.child import MOST_BYTES, MOST_LINES, LineStream


class Pipe:
    """Stands for a transport: notes whether it is read."""

    is_read = True

    def pause_reading(self):
        assert self.is_read
        self.is_read = False

    def resume_reading(self):
        assert not self.is_read
        self.is_read = True

    def is_closing(self):
        return False


def make_stream(answers=()):
    """Return a stream, the lines that were read, and where they come from."""
    lines, pipe = [], Pipe()

    def on_line(line):
        lines.append(line)
        return line in answers

    stream = LineStream(100, on_line)
    stream.connect(pipe)
    return stream, lines, pipe


async def test_unsolicited_lines_are_read_in_bounded_batches():
    stream, lines, pipe = make_stream()
    stream.feed(b"x\n" * (2 * MOST_LINES + 1))
    assert (MOST_LINES, False) == (len(lines), pipe.is_read)
    await wait_until(lambda: len(lines) == 2 * MOST_LINES)
    assert not pipe.is_read
    await wait_until(lambda: len(lines) == 2 * MOST_LINES + 1)
    assert pipe.is_read
    stream.stop()


async def test_lines_that_a_call_waits_for_are_all_read():
    stream, lines, pipe = make_stream(answers=[b"x"])
    stream.feed(b"x\n" * (2 * MOST_LINES))
    assert (2 * MOST_LINES, True) == (len(lines), pipe.is_read)
    stream.stop()


async def test_long_line_is_read_in_bounded_chunks():
    stream, lines, pipe = make_stream()
    for _ in range(MOST_BYTES // 65536):
        stream.feed(b"x" * 65536)
    assert pipe.is_read
    stream.feed(b"x")
    assert not pipe.is_read
    await wait_until(lambda: pipe.is_read)
    assert 1 == len(lines)
    stream.stop()


async def test_rest_of_the_stream_is_read_at_its_end():
    stream, lines, _ = make_stream()
    stream.feed(b"x\n" * (MOST_LINES + 1) + b"last")
    stream.end()
    stream.end()
    assert (MOST_LINES + 2, b"last", False) == (len(lines), lines[-1], stream.is_open)
