"""``patchbay demo``: a model that only writes text calls two tools, before your eyes.

What lives here: starting a scripted model server and a proxy as real processes, and having two conversations
through them with the ``openai`` client. The conversations are in ``demo_talk``, their look in ``demo_page``.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchbay.cli.children import listening
from patchbay.cli.demo_talk import Record, Step, Talk

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

TALKS = (
    Talk(
        number=1,
        streamed=False,
        question="Please multiply 12345678901234567890 by 3, and count the lines of the module `argparse`.",
        expected=(
            ("multiply", {"a": 12345678901234567890, "b": 3}),
            ("count_lines", {"module": "argparse"}),
        ),
    ),
    Talk(
        number=2,
        streamed=True,
        question="Now count the lines of `json` and of `textwrap`.",
        expected=(("count_lines", {"module": "json"}), ("count_lines", {"module": "textwrap"})),
    ),
)


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print each step as one line of JSON.")] = False,
) -> None:
    """Watch a model that only writes text call two tools, through the proxy."""
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="patchbay-demo-") as folder:
        problems = _print_json(Path(folder)) if as_json else _print_page(Path(folder))
    if problems:
        raise typer.Exit(1)


def _print_json(folder: Path) -> list[str]:
    def tell(step: Step) -> None:
        print(json.dumps(asdict(step)), flush=True)

    problems = _run(folder, lambda **parties: tell(Step(0, "opening", parties)), tell)
    tell(Step(0, "closing", {"problems": problems}))
    return problems


def _print_page(folder: Path) -> list[str]:
    from rich.console import Console

    from patchbay.cli.demo_page import Page

    page = Page(Console(highlight=False))
    problems = _run(folder, page.opening, page.step)
    page.closing(problems)
    return problems


def _run(folder: Path, opening: Callable[..., None], tell: Callable[[Step], None]) -> list[str]:
    import openai

    record = folder / "record.jsonl"
    model = [sys.executable, "-m", "patchbay.testing.upstream", "--tools", "refuse", "--until-stdin-closes"]
    proxy = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream"]
    with (
        listening([*model, "--record", str(record)], name="the scripted model") as upstream,
        listening([*proxy, upstream.url], name="patchbay proxy") as gateway,
        openai.OpenAI(base_url=gateway.url, api_key="unused", max_retries=0, timeout=30.0) as client,
    ):
        _ = client.chat.completions  # loaded before anything is shown: pydantic, building its classes, garbles a Ctrl-C
        opening(model_url=upstream.url, model_pid=upstream.pid, proxy_url=gateway.url, proxy_pid=gateway.pid)
        reader = Record(record)
        try:
            return [problem for talk in TALKS for problem in talk.run(client, reader, tell)]
        except openai.OpenAIError as error:
            return [f"the client got {type(error).__name__}: {error}\nThe proxy printed:\n{''.join(gateway.printed)}"]


def _leave(number: int, _: FrameType | None) -> None:
    """End as an exception does, so that the processes are stopped on the way out."""
    raise SystemExit(128 + number)
