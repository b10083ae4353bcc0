"""The two tools of ``patchbay demo``: real Python functions, one of which runs in a process of its own.

What lives here: what a user of an OpenAI client writes, and nothing of Patchbay: OpenAI's ``tools`` by hand,
and functions that take what the model wrote.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_COUNT = """
import importlib.util, json, os, sys
module = sys.argv[1]
with open(importlib.util.find_spec(module).origin, encoding="utf-8") as file:
    print(json.dumps({"module": module, "lines": sum(1 for _ in file), "pid": os.getpid()}))
"""


def multiply(a: int, b: int) -> str:
    """Multiply two integers exactly."""
    return json.dumps({"product": a * b, "pid": os.getpid()})


def count_lines(module: str) -> str:
    """Count the lines of a Python standard library module, in another process."""
    command = [sys.executable, "-I", "-c", _COUNT, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  (no shell)
    return done.stdout.strip() or f"Error: {done.stderr.strip().rpartition(chr(10))[2]}"


FUNCTIONS: dict[str, Callable[..., str]] = {"multiply": multiply, "count_lines": count_lines}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply two integers exactly.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "count_lines",
            "description": "Count the lines of a module of Python's standard library.",
            "parameters": {
                "type": "object",
                "properties": {"module": {"type": "string", "description": "its name, such as json"}},
                "required": ["module"],
            },
        },
    },
]
