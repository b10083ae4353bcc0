"""Small parts of host and worker: finding plugins, lines of output, bounded logs, deadlines, and changes of files."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.errors import ConfigurationError
from patchbay.plugins.host.host import look_at
from patchbay.plugins.host.process import MOST_CHARS, MOST_LINES, LogBook, OutputReader
from patchbay.plugins.manifest import find_plugins, spec_of
from patchbay.plugins.protocol import CANCEL_GRACE, MAX_TIMEOUT, host_deadline, tool_deadline
from patchbay.plugins.worker import MAX_RECORDS, RECORDS_SECONDS, HostHandler
from plugins.host_rig import write_plugin


def test_one_bad_plugin_does_not_hide_the_others(tmp_path):
    write_plugin(tmp_path / "b", "")
    write_plugin(tmp_path / "a", "", '[plugin_runtime]\ntimeout = "soon"\n')
    write_plugin(tmp_path / "c", "").joinpath("plugin.toml").write_text('[plugin]\nid = "b"\nentry = "main:Plugin"\n')
    write_plugin(tmp_path / "d", "", "[plugin_runtime]\nenabled = false\n")
    (tmp_path / "no_plugin").mkdir()
    found = find_plugins(tmp_path)
    assert ["b"] == [spec.id for spec in found.specs]
    assert 2 == len(found.problems)
    assert "timeout must be a number" in found.problems[0]
    assert "there is a plugin 'b' already" in found.problems[1]


def test_a_plugins_own_folder_is_a_folder_of_one(tmp_path):
    write_plugin(tmp_path / "b", "")
    assert ["b"] == [spec.id for spec in find_plugins(tmp_path / "b").specs]


def test_class_is_loaded_from_a_file_or_the_import_path(tmp_path):
    (tmp_path / "weather.py").touch()
    here, elsewhere = spec_of("weather:W", beside=tmp_path), spec_of("json.decoder:W", beside=tmp_path)
    assert ("weather", tmp_path) == (here.id, here.folder)
    assert ("decoder", None) == (elsewhere.id, elsewhere.folder)
    with pytest.raises(ConfigurationError, match="neither a folder nor module:Class"):
        spec_of("weather", beside=tmp_path)


@given(st.lists(st.binary(max_size=30)), st.data())
def test_lines_are_equal_in_any_split_of_the_output(pieces, data):
    text = b"\n".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    reader, lines = OutputReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        lines += reader.feed(text[start:end])
    lines += reader.close()
    whole = OutputReader()
    assert whole.feed(text) + whole.close() == lines


def test_overlong_line_is_truncated_once_and_the_next_is_read():
    reader = OutputReader()
    lines = [line for _ in range(100) for line in reader.feed(b"x" * 1000)]
    assert 1 == len(lines)
    assert "left out" in lines[0]
    assert ["next"] == reader.feed(b"\nnext\n")


def test_newest_of_too_many_lines_are_kept():
    lines = OutputReader().feed(b"".join(b"%d\n" % n for n in range(10_000)))
    assert "9999" == lines[-1]
    assert "... (9,499 lines left out)" == lines[1]


def test_logs_of_each_plugin_are_bounded():
    book = LogBook()
    for n in range(MOST_LINES + 10):
        book.add("chatty", "stdout", str(n))
    book.add("large", "stdout", "x" * MOST_CHARS)
    book.add("large", "stdout", "last")
    assert MOST_LINES == len(book.last("chatty"))
    assert ["last"] == [line.text for line in book.last("large")]
    assert str(MOST_LINES + 9) == book.last("chatty", 1)[0].text
    assert [] == book.last("nobody")


def test_folder_fingerprint_changes_with_sources_and_not_with_caches(tmp_path):
    write_plugin(tmp_path, "")
    before = look_at(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "main.py").touch()
    (tmp_path / "data.db").touch()
    assert before == look_at(tmp_path)
    (tmp_path / "more.py").touch()
    assert before != look_at(tmp_path)
    assert frozenset() == look_at(tmp_path / "gone")


@given(st.floats(0.001, MAX_TIMEOUT))
def test_tool_deadline_precedes_the_hosts_and_that_the_servers(timeout):
    assert 0 < tool_deadline(timeout) < host_deadline(timeout) < timeout


@given(st.floats(5, MAX_TIMEOUT))
def test_long_timeouts_leave_time_for_a_stubborn_tool(timeout):
    assert tool_deadline(timeout) + CANCEL_GRACE < host_deadline(timeout)


def record(number):
    return logging.LogRecord("plugin", logging.INFO, "main.py", 1, "line %d", (number,), None)


def test_a_plugin_that_logs_without_end_is_passed_on_in_part_and_the_rest_is_counted(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    taken = []
    handler = HostHandler(lambda message: taken.append(message) or True)
    for number in range(MAX_RECORDS + 7):
        handler.emit(record(number))
    assert MAX_RECORDS == len(taken)
    now[0] += 2 * RECORDS_SECONDS
    handler.emit(record(0))
    handler.emit(record(1))
    assert [7, 0] == [message.dropped for message in taken[MAX_RECORDS:]]
