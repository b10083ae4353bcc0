"""``openapi.json`` of ``patchbay serve`` with all that flags add to it. The proxy describes nothing: its paths are the upstream's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import Recorded

CONFIG = {"approvals": {"default": "ask"}}


def record() -> Recorded:
    """Ask a server, started as an operator does."""
    recorded = Recorded()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        flags = ("--upstream", "http://127.0.0.1:9/v1", "--realtime", "openai/m", "--realtime-key", "k", "--audit", "memory")
        with serving("serve", "--store", "memory", "--roles", "ann,ben", "--config", str(config), *flags) as url:
            described = ask(f"{url}/openapi.json")
    recorded.files["openapi/serve.json"] = json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return recorded


@contextlib.contextmanager
def serving(*command: str) -> Iterator[str]:
    """Run a server of ours on a free port, and give its URL."""
    with subprocess.Popen(
        [sys.executable, "-m", "patchbay", *command, "--port", "0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ.copy(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        printed = []
        try:
            for line in process.stdout:
                printed.append(line)
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield found[0]
                    break
            else:
                raise RuntimeError(f"patchbay {' '.join(command)}: {''.join(printed)}")
        finally:
            process.kill()  # it keeps nothing


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)
