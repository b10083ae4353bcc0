"""A stream of bytes is read as lines, however it comes, in bounded memory."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from patchbay._subprocess import HEAD, LineReader, Overlong

LIMIT = 8


def read(reader: LineReader, *pieces: bytes) -> list[bytes | Overlong]:
    return [line for piece in pieces for line in reader.feed(piece)] + reader.close()


@given(st.lists(st.binary(max_size=2 * LIMIT).map(lambda text: text.replace(b"\n", b"."))), st.data())
def test_lines_are_equal_in_any_split(lines, data):
    text = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = [line if len(line) <= LIMIT else Overlong(line[:HEAD]) for line in lines]
    assert [_by_limit(line) for line in expected] == [_by_limit(line) for line in read(LineReader(LIMIT), *pieces)]


def _by_limit(line: bytes | Overlong) -> bytes:
    """Compare lines; of one that is too long only the beginning, since its length depends on the cuts."""
    return b"too long: " + line.head[: LIMIT + 1] if isinstance(line, Overlong) else line


def test_a_line_of_exactly_the_limit_is_read_and_one_byte_more_is_not():
    reader = LineReader(LIMIT)
    assert [b"x" * LIMIT, Overlong(b"x" * (LIMIT + 1)), b"next"] == reader.feed(
        b"x" * LIMIT + b"\n" + b"x" * (LIMIT + 1) + b"\nnext\n"
    )


def test_overlong_line_is_reported_before_its_end_and_the_next_is_read():
    reader = LineReader(LIMIT)
    assert [] == reader.feed(b"x" * LIMIT)
    assert [Overlong(b"x" * LIMIT + b"y")] == reader.feed(b"y")
    assert [] == reader.feed(b"z" * 100)
    assert [b"next"] == reader.feed(b"z\nnext\n")


def test_oversized_line_is_buffered_up_to_the_limit_only():
    reader, piece = LineReader(100_000), b"x" * 1000
    tracemalloc.start()
    try:
        for _ in range(2000):
            reader.feed(piece)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 500_000
    assert kept < 20_000


def test_the_head_of_a_long_line_is_cut():
    (line,) = LineReader(LIMIT).feed(b"x" * (3 * HEAD))
    assert isinstance(line, Overlong)
    assert HEAD == len(line.head)


def test_a_last_line_without_a_newline_is_a_line():
    assert [b"a", b"b"] == read(LineReader(LIMIT), b"a\nb")
