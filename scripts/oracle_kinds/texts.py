"""What is read in the golden cases, the fuzz corpus and the recorded corpora, whole and in pieces of 1, 3 and 7.

A line is two digests: of the replies and of the events. Only the second differs where the same reading comes out in other steps.
Lines begin with the text's id, but in the files of BFCL, where a line's number is that of the row.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from patchbay import Reply, StreamParser
from patchbay import formats as face

from . import ROOT, SHARED, Recorded

CUTS = (0, 1, 3, 7)
"""Characters per piece; 0 is the whole text."""

# Events as text. A class that is renamed is renamed here: what it holds must stay.
WRITTEN: dict[type, Callable[[Any], str]] = {
    face.TextDelta: lambda event: "text " + event.text,
    face.ReasoningDelta: lambda event: "reasoning " + event.text,
    face.TextWasReasoning: lambda _event: "was reasoning",
    face.CallStart: lambda event: f"start {event.index} {event.id} {event.name}",
    face.CallArguments: lambda event: f"arguments {event.index} {event.text}",
    face.CallEnd: lambda event: f"end {event.index} {event.call.id} {event.call.name} {event.call.raw_arguments}",
    face.CallCut: lambda event: f"cut {event.index} {event.call.id} {event.call.name} {event.call.raw_arguments}",
}


@dataclass(frozen=True)
class Sample:
    """One text, and how it is read."""

    id: str
    text: str
    tools: Any
    options: Mapping[str, Any]


def record() -> Recorded:
    """Read all texts."""
    recorded = Recorded(compare=compare)
    for name, samples in (("golden", golden), ("fuzz", fuzz)):
        recorded.files[f"texts/{name}.txt"] = lines(samples(), ids=True)
    for name, (file, samples, ids) in CORPORA.items():
        if file.is_file():
            recorded.files[f"texts/{name}.txt"] = lines(samples(file), ids=ids)
        else:
            recorded.absent[f"texts/{name}.txt"] = f"../{file.relative_to(ROOT.parent)} is not here"
    return recorded


def lines(samples: Iterable[Sample], *, ids: bool) -> str:
    return "".join(f"{sample.id} {digests(sample)}\n" if ids else f"{digests(sample)}\n" for sample in samples)


def digests(sample: Sample) -> str:
    readings = [read(sample, cut) for cut in CUTS]
    return f"{digest([plain(reply) for reply, _ in readings])} {digest([events for _, events in readings])}"


def digest(value: Any) -> str:
    written = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return base64.urlsafe_b64encode(hashlib.sha256(written).digest())[:6].decode()


def read(sample: Sample, cut: int) -> tuple[Reply | str, str]:
    """Return the reply, and the events as text. What the parser raises is a reply, too."""
    text = sample.text
    size = cut or max(1, len(text))
    told: list[str] = []
    try:
        parser = StreamParser(sample.tools, generate_id="call_{}".format, **sample.options)
        feed = parser.feed
        for at in range(0, len(text), size):
            told += [WRITTEN[type(event)](event) for event in feed(text[at : at + size])]
            told.append("|")
        told += [WRITTEN[type(event)](event) for event in parser.close()]
        return parser.reply, "\n".join(told)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return f"raised {error!r}", ""


def plain(reply: Reply | str) -> Any:
    if isinstance(reply, str):
        return reply
    calls = [[call.id, call.name, call.raw_arguments, call.extra] for call in reply.tool_calls]
    incomplete = [[call.id, call.name, call.raw_arguments, call.raw] for call in reply.incomplete]
    repairs = [[repair.kind, repair.position] for repair in reply.repairs]
    return [reply.content, reply.reasoning, calls, incomplete, repairs, reply.extra]


# The texts


def golden() -> Iterator[Sample]:
    """The cases of tests/formats/cases, each with its format and with "auto"; and with neither tools nor options."""
    folder = ROOT / "tests" / "formats" / "cases"
    offered = tomllib.loads((folder / "tools.toml").read_text(encoding="utf-8"))
    for file in sorted(folder.glob("*.toml")):
        for case in tomllib.loads(file.read_text(encoding="utf-8")).get("case", []):
            tools = [as_tool(name, offered["tools"][name]) for name in case.get("tools", offered["default"])]
            options = {key: case[key] for key in ("reasoning_prefilled", "unknown_tools") if key in case}
            for way in dict.fromkeys((case["format"], "auto")):
                yield Sample(f"{case['id']}:{way}", case["text"], tools, {**options, "format": way})
            yield Sample(f"{case['id']}:any-tool", case["text"], None, {})


def as_tool(name: str, written: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": written.get("properties", {}), "required": written.get("required", [])}
    return {"type": "function", "function": {"name": name, "description": written["description"], "parameters": schema}}


def fuzz() -> Iterator[Sample]:
    """The damaged texts of tests/formats/fuzz, with three sets of options. A text's id is a digest of it."""
    tests = ROOT / "tests" / "formats"
    offered = tomllib.loads((tests / "cases" / "tools.toml").read_text(encoding="utf-8"))
    tools = [as_tool(name, offered["tools"][name]) for name in offered["default"]]
    options = ({}, {"reasoning_prefilled": True}, {"reasoning": False, "unknown_tools": "keep"})
    for file in sorted((tests / "fuzz").glob("*.txt")):
        with file.open(encoding="utf-8", newline="") as opened:  # their line ends are their own
            texts = dict.fromkeys(opened.read().split("\n%%%%%%%%\n"))
        for text in texts:
            for way, each in enumerate(options):
                yield Sample(f"{digest(text)}:{way}", text, tools, each)


def corpus_of_formats(file: Path) -> Iterator[Sample]:
    for row in rows(file):
        names = {tool.get("function", tool)["name"] for tool in row["tools"] or ()}
        keeps = any(call["name"] not in names for call in row["expected_calls"])
        options = {
            "reasoning": row["extract_reasoning"],
            "reasoning_prefilled": row["reasoning_prefilled"],
            "unknown_tools": "keep" if keeps else "text",
        }
        yield Sample(f"{row['id']}:named", row["text"], row["tools"], {**options, "format": row["format"]})
        yield Sample(f"{row['id']}:auto", row["text"], row["tools"], options)


def bfcl(file: Path) -> Iterator[Sample]:
    for row in rows(file):
        yield Sample(f"{row['model']} {row['id']}", row["text"], row["tools"], {})


def templates(file: Path) -> Iterator[Sample]:
    """What chat templates write, read with any tool."""
    for name, row in json.loads(file.read_text(encoding="utf-8")).items():
        if row and row.get("render"):
            yield Sample(name, row["render"], None, {})


def rows(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as text:
        yield from (json.loads(line) for line in text if line.strip())


CORPORA = {
    "formats": (SHARED / "formats" / "dev.jsonl.gz", corpus_of_formats, True),
    "templates": (SHARED / "formats" / "template_renders.json", templates, True),
    "bfcl": (SHARED / "bfcl" / "dev.jsonl.gz", bfcl, False),
    "bfcl_text": (SHARED / "bfcl" / "dev_fc_text.jsonl.gz", bfcl, False),
}


# Differences


def compare(name: str, before: str, now: str) -> list[str]:
    """Say which texts are read otherwise, and what is read in them now."""
    samples, ids = of_file(Path(name).stem)
    was, is_now = keyed(before, ids=ids), keyed(now, ids=ids)
    told = []
    for number, (key, digests) in enumerate(is_now.items()):
        if key not in was:
            told.append(f"{samples[number].id}: is new")
        elif digests != was[key]:
            told.append(explain(samples[number], is_reply=digests[:6] != was[key][:6]))
    return told + [f"{key}: is gone" for key in was.keys() - is_now.keys()]


def keyed(written: str, *, ids: bool) -> dict[str, str]:
    """Return the digests of each line, by the text's id or the line's number."""
    if not ids:
        return {str(number): line for number, line in enumerate(written.splitlines(), 1)}
    return {line[:-14]: line[-13:] for line in written.splitlines()}


def explain(sample: Sample, *, is_reply: bool) -> str:
    whole = plain(read(sample, 0)[0])
    cuts = [cut for cut in CUTS if plain(read(sample, cut)[0]) != whole]
    what = "reads otherwise" if is_reply else "has other events, and the same reply"
    return (
        f"{sample.id}: {what}{f', and in pieces of {cuts} not even as the whole text' if cuts else ''}\n"
        f"  text {json.dumps(sample.text, ensure_ascii=False)}\n"
        f"  now  {json.dumps(whole, ensure_ascii=False)}"
    )


@cache
def of_file(name: str) -> tuple[list[Sample], bool]:
    """Return a file's texts, and whether its lines begin with their ids."""
    if name in CORPORA:
        file, samples, ids = CORPORA[name]
        return list(samples(file)), ids
    return list({"golden": golden, "fuzz": fuzz}[name]()), True
