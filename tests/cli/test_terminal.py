"""Text from others can not control the terminal."""

from __future__ import annotations

import pytest

from patchbay.cli.terminal import plain


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        ("plain 北京 é\tx", "plain 北京 é\tx"),
        ("red", "\x1b[1;31mred\x1b[0m"),
        ("red", "\x1b[38:2::1:2:3mred"),
        ("a\\x1b[2Jb", "a\x1b[2Jb"),
        ("a\\x1b]0;title\\x07b", "a\x1b]0;title\x07b"),
        ("a\\x9b2Jb\\x0d\\x7f", "a\x9b2Jb\r\x7f"),
        ("\\x1b[3\\x1b[2J1m", "\x1b[3\x1b[2J1m"),
        ("\\x1b[31m", "\x1b\x1b[32m[31m"),
    ],
)
def test_colours_are_left_out_and_other_controls_escaped(shown, line):
    assert shown == plain(line)
