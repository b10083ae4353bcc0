"""The command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from patchbay.cli.commands import run
from realtime.server.conftest import shared, shared_server

__all__ = ["shared", "shared_server"]


@pytest.fixture
def patchbay(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in this process; return its status, output and errors."""

    def call(*arguments: Any) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call
