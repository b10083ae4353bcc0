"""``--help`` of every command, as a terminal of 80 columns without colours shows it. One process runs them all."""

from __future__ import annotations

import contextlib
import io
import re

from . import Recorded


def record() -> Recorded:
    """Ask each command for its help; the names of its commands stand there."""
    recorded = Recorded()
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        command = waiting.pop()
        text = help_of(command)
        recorded.files[f"help/{'-'.join(('patchbay', *command))}.txt"] = text
        waiting += [(*command, name) for name in commands(text)]
    return recorded


def help_of(command: tuple[str, ...]) -> str:
    from patchbay.cli import main

    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status: object = main([*command, "--help"])
    except SystemExit as ended:
        status = ended.code
    lines = (line.rstrip() for line in (out.getvalue() + err.getvalue()).strip("\n").splitlines())
    return "\n".join([f"exit status {status or 0}", *lines]) + "\n"


def commands(text: str) -> list[str]:
    """Return the names below "Commands", plain or in a box."""
    names, inside = [], False
    for line in text.splitlines():
        if re.match(r"(╭─ )?Commands\b", line):
            inside = True
        elif inside and (found := re.match(r"(?:│ |  )([a-z][\w-]*)(?:  |$)", line)):
            names.append(found[1])
        elif inside and not line.startswith(("│", " ")):
            inside = False
    return names
