"""The process of a plugin over a real socket: the dialogues of ``wire/worker.txt``."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from patchbay.plugins.protocol import FromHost, FromWorker, Message
from plugins.host_rig import RigHost, write_plugin
from tools_server.dialogues import differs

FILE = Path(__file__).parent / "wire" / "worker.txt"
KINDS = {kind.__struct_config__.tag: kind for kind in get_args(FromWorker | FromHost)}
HEAD = "import asyncio\nclass Plugin(NekoPluginBase):\n"


def dialogues() -> dict[str, tuple[str, list[str]]]:
    """Return the module of each plugin and the lines that follow, by title."""
    _, *found = FILE.read_text(encoding="utf-8").split("\n== ")
    read = {}
    for each in found:
        head, _, rest = each.partition("\nstart ")
        title, _, source = head.partition("\n")
        module = source.removeprefix("module\n") if source.startswith("module\n") else HEAD + source
        read[title] = (module, [line for line in f"start {rest}".split("\n") if line])
    return read


def message_of(line: str) -> Message:
    _, tag, fields = line.split(" ", 2)
    read = json.loads(fields)
    if "args" in read:
        read["args"] = json.dumps(read["args"])
    return msgspec.convert({"type": tag, **read}, Message)


def shown(message: Message) -> dict[str, Any]:
    """Return the fields of a message, its data as JSON."""
    found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    if data := found.get("data"):
        found["data"] = json.loads(data)
    return found


DIALOGUES = dialogues()


@pytest.mark.parametrize("title", DIALOGUES)
async def test_the_process_answers_as_the_dialogue_says(tmp_path: Path, title: str) -> None:
    module, (start, *lines) = DIALOGUES[title]
    folder = write_plugin(tmp_path / "wire", textwrap.dedent(module))
    async with RigHost(folder, **json.loads(start.removeprefix("start "))) as host:
        for line in lines:
            kind, _, rest = line.partition(" ")
            if kind == ">":
                host.send(message_of(line))
            elif kind == "<":
                tag, _, fields = rest.partition(" ")
                expected = json.loads(fields)
                req_id = expected.get("req_id")
                message = await host.expect(
                    KINDS[tag], lambda each, req_id=req_id: req_id in (None, getattr(each, "req_id", None))
                )
                assert "" == differs(expected, shown(message)), f"{line}\n{message}"
            elif kind == "exit":
                assert int(rest) == await host.exited()
            else:
                assert "out" == kind
                assert re.search(f"^{re.escape(rest)}$", host.stdout, re.MULTILINE), host.stdout
        assert "" == host.stderr
