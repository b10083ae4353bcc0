"""Relay used in place of a plugin's interpreter: starts the real one, and passes frames between it and the host, recording them.

    frame_relay.py FOLDER PYTHON ARGUMENTS...

The first line of standard input is JSON with the ``address`` of the host (``unix:PATH``); frames are four bytes of length and msgpack.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


def main() -> int:
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    bootstrap: dict[str, Any] = json.loads(os.read(0, 65536))
    path = folder / f"relay-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        child = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert child.stdin is not None
        child.stdin.write(json.dumps({**bootstrap, "address": f"unix:{path}"}).encode() + b"\n")
        child.stdin.flush()
        plugin, _ = listener.accept()
    host = socket.socket(socket.AF_UNIX)
    host.connect(bootstrap["address"].removeprefix("unix:"))
    with (folder / "frames").open("a", encoding="utf-8") as log:
        both = [
            threading.Thread(target=passed, args=each, daemon=True)
            for each in ((host, plugin, log, ">"), (plugin, host, log, "<"))
        ]
        for each in both:
            each.start()
        threading.Thread(target=ended, args=(child,), daemon=True).start()
        status = child.wait()
        both[1].join(5)
    return status if status >= 0 else 128 - status


def ended(child: subprocess.Popen[bytes]) -> None:
    """Close the child's input when the host closes ours: so it knows that it is alone."""
    while os.read(0, 4096):
        pass
    assert child.stdin is not None
    child.stdin.close()


def passed(source: socket.socket, sink: socket.socket, log: Any, mark: str) -> None:
    from oracle_kinds.plugins import decode

    buffer = b""
    while data := source.recv(65536):
        sink.sendall(data)
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := struct.unpack(">I", buffer[:4])[0]):
            body, buffer = buffer[4 : 4 + size], buffer[4 + size :]
            log.write(f"{mark} {decode(body)}\n")
            log.flush()
    sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
