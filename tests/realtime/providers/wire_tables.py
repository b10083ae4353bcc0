"""Reads the wire tables in ``wire/``: dialogues of a dialect with a server, and what the dialect makes of each line.

A table has cases, each with a line ``## name [providers]`` and these lines:

    with {...}       settings of the session
    < {...}          a frame of the server; with ``<<`` the vendor's SDK must accept it
    = Event ...      an event that the dialect reads from it
    ! operation ...  a method that the session calls
    > {...}          a frame that the dialect sends for it, without its event id

``python -m realtime.providers.wire_tables`` (in ``tests``) writes the lines ``=`` and ``>`` again: review the difference.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from google.genai import types as google
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from patchbay.realtime.providers import event_protocol, gemini
from patchbay.realtime.providers.base import CallResult, ConnectionSetup, Dialect, Frame, Line
from patchbay.realtime.server_events import FinalCall, ServerEvent

from .frames import CLOCK, WEATHER, assert_openai_takes, dialect, shaped, without_id

TABLES = Path(__file__).with_name("wire")
TOOLS = {"weather": WEATHER, "clock": CLOCK}
_SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


@dataclass
class Case:
    """A dialogue. ``lines`` are those of the table, with what is expected."""

    table: str
    name: str
    providers: list[str]
    lines: list[str] = field(default_factory=list)

    def inputs(self) -> list[str]:
        """Return the lines without what is expected."""
        return [line for line in self.lines if line[0] not in "=>"]


def cases() -> Iterator[Case]:
    """Yield the cases of all tables."""
    for path in sorted(TABLES.glob("*.txt")):
        case: Case | None = None
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("## "):
                if case is not None:
                    yield case
                name, _, providers = line[3:].rstrip("]").rpartition(" [")
                case = Case(path.stem, name, providers.split())
            elif case is not None and line:
                case.lines.append(line)
        if case is not None:
            yield case


def played(case: Case, provider: str) -> list[str]:
    """Play a case; return its lines with the events and frames that come of them."""
    lines: list[str] = []
    numbers = count(1)
    with patch.object(gemini, "uuid4", _ids(numbers)), patch.object(event_protocol, "uuid4", _ids(numbers)):
        one: Dialect | None = None
        sent: list[str] = []
        for line in case.inputs():
            lines.append(line)
            kind, _, rest = line.partition(" ")
            if kind == "with":
                one = dialect(provider, **json.loads(rest))
                continue
            one = one or dialect(provider)
            if kind == "!":
                frames = operate(one, *shlex.split(rest))
                sent += [frame["event_id"] for frame in frames if "event_id" in frame]
                lines += [f"> {json.dumps(without_id(frame), ensure_ascii=False)}" for frame in frames]
                for frame in frames:
                    check_sent(provider, frame)
            else:
                if kind == "<<":
                    check_received(provider, json.loads(rest))
                lines += [f"= {shown(event)}" for event in one.read(json.loads(rest))]
        assert len(sent) == len(set(sent)), "no two frames have one id"
    return lines


def _ids(numbers: Iterator[int]) -> Any:
    return lambda: SimpleNamespace(hex=f"id{next(numbers)}")


def operate(one: Dialect, operation: str, *arguments: str) -> list[Frame]:
    """Call a method of the dialect, as a line of a table names it."""
    opening = ConnectionSetup(
        shaped(one, *(TOOLS[name] for name in arguments if name in TOOLS)),
        [Line(*each.split(":", 1)) for each in arguments if ":" in each],  # type: ignore[arg-type]
    )
    if operation in ("setup", "configure", "history"):
        method: Any = getattr(one, f"{operation}_frames")
        return list(method(opening))
    if operation == "tools":
        return one.tools_frames(opening.tools)
    if operation == "text":
        return one.text_frames(Line("user", arguments[0]), answer="answer" in arguments[1:])
    if operation == "audio":
        return one.audio_frames(bytes.fromhex(arguments[0]))
    if operation == "results":
        return one.result_frames([CallResult(*each.split("|", 2)) for each in arguments])
    if operation == "cancel":
        return one.cancel_frames(arguments[0])
    return {"audio_end": one.audio_end_frames, "respond": one.response_frames}[operation]()


def shown(event: ServerEvent) -> str:
    """Return an event as a line: its type and the fields that it sets."""
    set_fields = {each.name: getattr(event, each.name) for each in fields(event)}
    defaults = {each.name: each.default for each in fields(event) if each.default is not MISSING}
    texts = [
        f"{name}={json.dumps(value, default=_plain, ensure_ascii=False)}"
        for name, value in set_fields.items()
        if name not in defaults or value != defaults[name]
    ]
    return " ".join([type(event).__name__, *texts])


def _plain(value: object) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, frozenset):
        return sorted(value)
    assert isinstance(value, FinalCall)
    return [value.key, value.call_id, value.name, value.arguments]


def check_sent(provider: str, frame: Mapping[str, Any]) -> None:
    """Check that the vendor's SDK has each member of a frame that is sent."""
    if provider == "openai":
        assert_openai_takes(frame)
    elif provider == "gemini":
        setup = frame.get("setup")
        if setup is not None:  # the SDK adds this member when its model has been written
            google.RealtimeInputConfig.model_validate(setup.get("realtimeInputConfig", {}))
            frame = {"setup": {name: value for name, value in setup.items() if name != "realtimeInputConfig"}}
        google.LiveClientMessage.model_validate(frame)


def check_received(provider: str, frame: Mapping[str, Any]) -> None:
    """Check that the vendor's SDK takes a frame of the server."""
    if provider == "gemini":
        google.LiveServerMessage.model_validate(frame)
    else:
        _SERVER_EVENT.validate_python(frame)


def main() -> None:
    """Write the tables again."""
    texts: dict[str, list[str]] = {}
    for case in cases():
        lines = [f"## {case.name} [{' '.join(case.providers)}]", *played(case, case.providers[0]), ""]
        texts.setdefault(case.table, []).extend(lines)
    for table, lines in texts.items():
        (TABLES / f"{table}.txt").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
