"""A model server for the soak: streams slowly, calls the tool that the user's text names, and repeats what the tool returned.

``python -m faults.soak_upstream --port PORT --pause SECONDS``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import Any

PIECES = 8
TASK = re.compile(r"call (echo_\d+) with token-([0-9a-f]{32})")
RESULT = re.compile(r"result-([0-9a-f]{32})")
WORDS = [f"word{number} " for number in range(PIECES)]


def chunk(**delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "soak", "choices": [choice]}
    return f"data: {json.dumps(body)}\n\n".encode()


def pieces_of(body: dict[str, Any]) -> list[str]:
    """The pieces of an answer: words, then a call as text, or, where the tool has answered, what it returned."""
    whole = json.dumps(body["messages"][-1])
    if found := RESULT.search(whole):
        return [*WORDS, f"result-{found[1]}"]
    task = TASK.search(whole)
    if task is None:  # the call failed
        return [*WORDS, "failed"]
    call = json.dumps({"name": task[1], "arguments": {"token": task[2]}})
    return [*WORDS[: PIECES // 2], "\n```tool_call\n", call[:20], call[20:], "\n```"]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause: float) -> None:
    """Answer the requests of one connection."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"(?i)content-length: (\d+)", head)
            body = json.loads(await reader.readexactly(int(length[1]))) if length else {}
            if not body:
                models = json.dumps({"object": "list", "data": [{"id": "soak", "object": "model"}]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(models))
                writer.write(models)
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for part in [chunk(role="assistant"), *(chunk(content=piece) for piece in pieces_of(body)), b"data: [DONE]\n\n"]:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
                await asyncio.sleep(pause)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    options = parser.parse_args()
    server = await asyncio.start_server(lambda r, w: serve(r, w, options.pause), "127.0.0.1", options.port, backlog=1000)
    print(f"http://127.0.0.1:{options.port}", flush=True)  # noqa: T201
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
