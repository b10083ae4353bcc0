"""Text from others can only colour the terminal."""

from __future__ import annotations

import pytest

from patchbay.cli.terminal import sanitize_ansi


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        ("plain 北京 é\tx", "plain 北京 é\tx"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred"),
        ("\x1b[38:2::1:2:3mred\x1b[0m", "\x1b[38:2::1:2:3mred\x1b[0m"),
        ("ab", "a\x1b[2Jb"),
        ("ab", "a\x1b[?1049hb"),
        ("ab", "a\x1b]0;title\x07b"),
        ("ab", "a\x1b]8;;http://x\x1b\\b"),
        ("a0;title", "a\x1b]0;title"),
        ("ab", "a\x1bcb"),
        ("ab", "a\x1b(0b"),
        ("ab", "a\x9b2Jb"),
        ("ab", "a\r\x08\x00\x7fb"),
        ("[31m", "\x1b\x00[31m"),
        ("ab", "a\x1b[31\x1b[2Jb"),
    ],
)
def test_colours_and_tabs_stay_and_all_else_goes(shown, line):
    clean = sanitize_ansi(line)
    assert shown.removesuffix("\x1b[0m") == clean.removesuffix("\x1b[0m")
    assert ("\x1b[" in shown) == clean.endswith("\x1b[0m")


def test_harmless_text_is_unchanged():
    line = "\x1b[3\x1b[2J1m\x1b\x1b[Ax\x1b[32my"
    assert sanitize_ansi(sanitize_ansi(line)) == sanitize_ansi(line)
