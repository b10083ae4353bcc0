"""Untrusted text is shown to a person escaped and truncated."""

from __future__ import annotations

import pytest

from patchbay._text import escape_controls, one_line, printable


@pytest.mark.parametrize("read", [printable, escape_controls])
def test_other_languages_are_shown_unescaped(read):
    assert "猫 é 🐈" == read("猫 é 🐈")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[2J", r"\u001b[2J"), ("a\tb\n", r"a\u0009b\u000a"), ("a\u202eb", r"a\u202eb"), ("\U000e0001", r"\U000e0001")],
)
def test_control_characters_are_shown_by_number(text, shown):
    assert shown == printable(text)


def test_text_without_control_characters_keeps_its_tabs():
    assert r"a" "\t" r"b\x0a\x1b[2J\x7f\x9b" == escape_controls("a\tb\n\x1b[2J\x7f\x9b")


def test_one_line_text_is_truncated_to_its_limit():
    assert ("a b c", "abcde", "ab...") == (one_line(" a\n b\t\tc ", 5), one_line("abcde", 5), one_line("abcdef", 5))


def test_only_the_shown_part_of_a_long_text_is_read():
    assert "" == one_line(" " * 20 + "late", 5)
