"""A plugin's ``logging``, as it is sent to the host."""

from __future__ import annotations

import logging

from patchbay.plugins.worker import MAX_RECORDS, RECORDS_SECONDS, HostHandler


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
