"""Checks of ``patchbay hooks doctor``: sends sample requests to a hook's process and reports problems with a way to fix each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from patchbay._config import json_kind
from patchbay._text import plural
from patchbay.hooks.process.child import (
    NO_REPLY,
    HookProcess,
    HookProcessError,
    HookReplyError,
    ProcessSpec,
    UnreadableReplyError,
)
from patchbay.hooks.process.client import hello_params, tools_of
from patchbay.hooks.process.protocol import METHODS_OF, MODES, POINTS, decode_params
from patchbay.hooks.process.replies import Findings, WrongTypeError, parse_tools, read_decision
from patchbay.hooks.process.wire import NO_JSON, notification_line
from patchbay.hooks.tools import keeps_system
from patchbay.hooks.types import TRACE_PATHS, Ask, Modify, Respond

FLUSH: Final = "Write each answer as one line, with a newline at its end, and flush standard output behind it."
ANSWER_ALL: Final = "Answer every request with its id; {} is the answer of a hook that has nothing to say."
CATCH: Final = "Read each line in a try of its own; skip what is not an object, and answer invalid params with an error."
STDERR: Final = "Print to standard error: standard output is for answers only."
BOTH: Final = "A hook that is asked before_llm is asked after_llm, too, and before_tool brings after_tool: answer them with {}."
QUIET: Final = "Leave messages without an id unanswered, also those of kinds that you do not know."
BY_HAND: Final = "Run the command by hand: it says why."
START: Final = (
    "There is no shell: name the interpreter (python3 hook.py), a path that is right from here, each argument by itself."
)
LOOP: Final = "Read requests from standard input until it ends, and answer each: a hook that ends is started again, or given up."
REPLY: Final = 'An answer is one line: {"jsonrpc":"2.0","id":1,"result":{}}, its id the whole number of the request.'
JSON: Final = "Write each answer with a JSON library: texts in double quotes, no comma at the end, true and false, no NaN."
ANSWERS: Final = 'Which actions and members each answer has: docs/guides/hook-processes.md, "The wire".'
OFFER: Final = (
    'A tool is {"type":"function","function":{"name":"...","description":"...","parameters":{...}}}, with a JSON Schema.'
)
NOT_ASKED: Final = 'Put before_tool into its "intercept": without it, calls of its tools have no answer.'
END: Final = "End when standard input ends: the host has closed it, or is gone."
UNKNOWN: Final = "Answer methods that you do not know with the error code -32601: later hosts may have more."
BYTES: Final = "Read and write bytes, and decode them as UTF-8: text streams go by the locale."


PROBE: Final = "patchbay_probe"
"""The tool in the sample requests."""

_INBOUND: Final = {"channel": "doctor", "chat_id": "chat-1", "sender_id": "someone", "chat_type": "direct"}
_SCHEMA: Final = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_TOOL: Final = {"type": "function", "function": {"name": PROBE, "description": "Does nothing.", "parameters": _SCHEMA}}
_MESSAGES: Final = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "How is the weather in Zürich? <b>北京</b> & 🌦"},
]
_OPTIONS: Final = {"max_tokens": 512, "temperature": 0.5}
EVENT: Final = {
    "id": "evt-1", "kind": "agent.turn.start", "time": "2026-01-01T00:00:00.000000000Z", "source": {"component": "agent"},
    "scope": {"turn_id": "main-turn-1"}, "correlation": {}, "severity": "info", "payload": {"UserMessage": "hi", "MediaCount": 0},
}  # fmt: skip


def sample_params(point: str) -> dict[str, Any]:
    """Return the params of a sample request."""
    meta = {
        "AgentID": "main", "TurnID": "main-turn-1", "ParentTurnID": "", "SessionKey": "doctor:chat-1", "Iteration": 1,
        "TracePath": TRACE_PATHS[point], "Source": "runTurn",
    }  # fmt: skip
    params: dict[str, Any] = {"meta": meta, "context": {"inbound": _INBOUND}}
    if point == "before_llm":
        return {**params, "model": "some-model", "messages": _MESSAGES, "tools": [_TOOL], "options": _OPTIONS}
    if point == "after_llm":
        call = {"id": "call-1", "type": "function", "function": {"name": PROBE, "arguments": '{"path":"/tmp"}'}}
        response = {"content": "It is sunny.", "finish_reason": "tool_calls", "reasoning": "", "reasoning_details": None}
        return {**params, "model": "some-model", "response": {**response, "tool_calls": [call]}}
    params |= {"tool": PROBE, "arguments": {"path": "/tmp/Zürich & <北京>", "count": 3}}  # noqa: S108  (no file)
    if point == "after_tool":
        return {
            **params,
            "result": {"for_llm": "done", "silent": False, "is_error": False, "async": False},
            "duration": 1_500_000,
        }
    return {**params, "source": ""}


class SilentError(HookProcessError):
    """No answer in time."""


class StrayOutput:
    """Output that is not an answer: the count, the first line, and the first since ``begin``."""

    def __init__(self) -> None:
        self.count = 0
        self.first = self.recent = ""
        self.counts_replies = True
        """False while a notification is checked: unreadable replies do not count then."""

    def begin(self) -> None:
        """Start looking for the next recent line."""
        self.recent = ""

    def put(self, text: str) -> None:
        """Count a line."""
        if text.startswith(NO_REPLY) and not self.counts_replies:
            return
        self.count += 1
        self.first = self.first or text
        self.recent = self.recent or text


class ProbedProcess(HookProcess):
    """A process whose output lines are counted."""

    def __init__(self, spec: ProcessSpec, stray: StrayOutput) -> None:
        super().__init__(spec, stray=stray.put, stderr=lambda _text: None)
        self.lines = 0

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Count the lines, and read them."""
        if fd == 1:
            self.lines += data.count(b"\n")
        super().pipe_data_received(fd, data)


Outcome = Literal["ok", "warning", "failure"]

AT_ONCE: Final = 8
END_SECONDS: Final = 2.0
_IMPATIENT: Final = 0.3
"""Seconds to end, where that is not the check."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one check: ``words`` say what was found, ``way_out`` how to fix it."""

    check: str
    outcome: Outcome
    words: str = ""
    way_out: str = ""


async def examine(spec: ProcessSpec, *, modes: frozenset[str] | None = None, timeout: float = 5.0) -> list[Verdict]:  # noqa: ASYNC109
    """Check the hook of ``spec``; each answer has ``timeout`` seconds, the first of a process at least what its limits allow.

    ``modes`` are those that it must answer; with None all are tried, and it may not know some.
    """
    doctor = _Doctor(spec, modes, timeout)
    try:
        if not await doctor.check_hello():
            return doctor.verdicts
        for point in POINTS:
            if doctor.may_ask(point):
                await doctor.check_point(point)
        doctor.check_pairs()
        await doctor.check_unknown_method()
        await doctor.check_event()
        await doctor.check_concurrent_requests()
        await doctor.check_c_locale()
        await doctor.check_end()
        doctor.check_other_output()
        doctor.summarize_unreadable()
    finally:
        await doctor.close()
    return doctor.verdicts


class _Doctor:
    """The checks, on one process; a new one is started when it has ended or does not answer."""

    def __init__(self, spec: ProcessSpec, modes: frozenset[str] | None, timeout: float) -> None:
        self.verdicts: list[Verdict] = []
        self._spec = replace(spec, limits=replace(spec.limits, eof_grace=_IMPATIENT))
        self._modes = frozenset(MODES) if modes is None else modes
        self._tries_all_modes = modes is None
        self._timeout = timeout
        self._first = max(timeout, spec.limits.hello)  # includes the interpreter's start
        self.stray = StrayOutput()
        self._unknown: set[str] = set()
        self._unreadable: list[str] = []
        self._slowest = 0.0
        self._current: ProbedProcess | None = None

    # The checks

    async def check_hello(self) -> bool:
        check = "hook.hello"
        self._current = process = ProbedProcess(self._spec, self.stray)
        try:
            await process.start()
            hello = await self._call(check, self._hello(), within=self._first)
        except HookProcessError as error:
            await self.close()
            output = f" ({process.last_words:.300})" if process.last_words else ""
            if isinstance(error, UnreadableReplyError):
                self._fail(check, f"{_problem_of(error)}: {error.line:.160}", _fix_for_reply(error))
                return False
            self._fail(check, f"{error}{output}", self._fix_for_hello(process, error))
            return False
        if hello is not None and not isinstance(hello, dict):
            self._fail(check, f"the result is {json_kind(hello)}", 'Answer with an object: {"ok":true}.')
            return False
        offered, problems = parse_tools(tools_of(hello))
        if problems:
            self._fail(check, f"it offers an invalid tool: {problems[0]}", OFFER)
        elif offered and not self.may_ask("before_tool"):
            self._fail(check, "it offers tools that it is not asked for", NOT_ASKED)
        else:
            self._ok(check, f"offers {plural(len(offered), 'tool')}" if offered else "")
        return True

    def _fix_for_hello(self, process: ProbedProcess, error: HookProcessError) -> str:
        """Return how to fix a process that did not answer hello."""
        if not process.pid:
            return START
        if isinstance(error, SilentError):
            return self._fix_for_answer(error, FLUSH)
        return BY_HAND if process.last_words else LOOP

    async def check_point(self, point: str) -> None:
        check = f"hook.{point}"
        params = sample_params(point)
        findings = Findings()
        try:
            result = await self._call(check, params)
            words = self._read(point, result, params, findings)
        except WrongTypeError as error:
            self._fail(check, str(error), "A wrong type anywhere refuses the whole answer.")
        except HookProcessError as error:
            if isinstance(error, HookReplyError) and self._tries_all_modes and "an error: " in str(error):
                self._unknown.add(point)
                self._ok(check, f"not for this hook: {str(error).partition('an error: ')[2]}")
                return
            has_ended = self._current is not None and self._current.end is not None
            await self._report_unanswered(check, error, CATCH if has_ended else self._fix_for_answer(error, ANSWER_ALL))
        else:
            if findings.found:
                report = self._fail if findings.lost else self._warn
                report(check, "; ".join(findings.found.values()), ANSWERS)
            else:
                self._ok(check, words)

    def _read(self, point: str, result: Any, params: Mapping[str, Any], findings: Findings) -> str:
        """Parse an answer as the host does, and describe the decision. Raises WrongTypeError."""
        decision = read_decision(point, result, findings, params, decode_params(point, params))
        if point == "approve_tool":
            return "asks a person" if isinstance(decision, Ask) else "approves" if decision.approved else "does not approve"
        if point == "before_llm":
            _find_undone_changes(decision, params, findings)
        if isinstance(decision, Respond):
            findings.note("responds", "it answers for a tool that is not its own, which the host's policy may forbid")
        if isinstance(decision, Modify):
            if point == "after_llm" and params["response"].get("tool_calls"):
                if decision.changes.get("tool_calls") == []:
                    return "takes the calls out of the answer: the turn ends with its content"
                if "content" in decision.changes and "tool_calls" not in decision.changes:
                    return f"changes {', '.join(sorted(decision.changes))}: the calls stay, and are carried out"
            return f"changes {', '.join(sorted(decision.changes))}"
        return "" if decision is None else type(decision).__name__

    def check_pairs(self) -> None:
        for first, second in (("before_llm", "after_llm"), ("before_tool", "after_tool")):
            if (first in self._unknown) != (second in self._unknown):
                known, other = (second, first) if first in self._unknown else (first, second)
                self._fail(f"hook.{first} and hook.{second}", f"it knows {known} and not {other}", BOTH)

    async def check_unknown_method(self) -> None:
        check = "unknown method"
        try:
            await self._call("hook.patchbay_doctor", {})
        except HookReplyError:
            self._ok(check)
        except HookProcessError as error:
            await self._report_unanswered(check, error, UNKNOWN)
        else:
            self._warn(check, "it answers as if it knew the method", UNKNOWN)

    async def check_concurrent_requests(self) -> None:
        check = f"{AT_ONCE} requests at once"
        began = time.monotonic()
        try:
            lines = (process := await self._running()).lines
            await asyncio.gather(*(self._call("hook.hello", self._hello()) for _ in range(AT_ONCE)))
        except HookProcessError as error:
            await self._report_unanswered(check, error, ANSWER_ALL)
            return
        if (received := process.lines - lines) > AT_ONCE:
            self._warn(check, f"{received} lines came back for {AT_ONCE} requests", "Answer each request once.")
        else:
            self._ok(check, f"{(time.monotonic() - began) * 1000 / AT_ONCE:.2f} ms each")

    async def check_event(self) -> None:
        check = "hook.runtime_event"
        self.stray.counts_replies = False
        try:
            lines = (process := await self._running()).lines
            process.write(notification_line(check, EVENT))
            await self._call("hook.hello", self._hello())
        except HookProcessError as error:
            await self._report_unanswered(check, error, QUIET)
            return
        finally:
            self.stray.counts_replies = True
        if process.lines - lines > 1:
            self._warn(check, "it answers a message that has no id", QUIET)
        else:
            self._ok(check)

    async def check_c_locale(self) -> None:
        """Run in a locale that is not UTF-8, with buffered output."""
        check = "C locale, buffered output"
        point = next((point for point in POINTS if point not in self._unknown and self.may_ask(point)), None)
        if point is None:
            return
        await self.close()
        stray = self.stray.count
        env = {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONUNBUFFERED": ""}
        try:
            self._current = await self._start_process(replace(self._spec, env={**self._spec.env, **env}))
            await self._call(f"hook.{point}", sample_params(point))
        except HookProcessError as error:
            await self._report_unanswered(check, error, FLUSH if isinstance(error, SilentError) else BYTES)
        else:
            if self.stray.count > stray:
                self._fail(check, f"it printed {self.stray.recent:.100}", BYTES)
            else:
                self._ok(check)
        await self.close()

    async def check_end(self) -> None:
        for check, grace, way_out in (
            ("end of standard input", END_SECONDS, END),
            ("SIGTERM", 0.0, "End on SIGTERM; most programs do by themselves."),
        ):
            limits = replace(self._spec.limits, eof_grace=grace, term_grace=END_SECONDS)
            try:
                process = await self._start_process(replace(self._spec, limits=limits))
            except HookProcessError as error:
                self._fail(check, str(error), BY_HAND)
                continue
            await process.close()
            how = process.exit or "it is still there"
            if "SIGKILL" in how or "still" in how:
                self._warn(check, "it had to be killed", way_out)
            elif "SIGTERM" in how and grace:
                self._warn(check, f"it did not end within {grace:g} s, but on SIGTERM", way_out)
            else:
                self._ok(check, how)

    def check_other_output(self) -> None:
        check = "standard output"
        if self.stray.count:
            self._fail(check, f"{self.stray.count} lines are not answers, the first: {self.stray.first:.120}", STDERR)
        else:
            self._ok(check)
        self._ok("slowest answer", f"{self._slowest * 1000:.1f} ms")

    def summarize_unreadable(self) -> None:
        """Add to the first verdict about an unreadable reply how many further checks had one."""
        if others := self._unreadable[1:]:
            index = next(index for index, each in enumerate(self.verdicts) if each.check == self._unreadable[0])
            first = self.verdicts[index]
            self.verdicts[index] = replace(
                first, words=f"{first.words}; and so in {len(others)} more check{'' if len(others) == 1 else 's'}"
            )

    # Helpers

    async def close(self) -> None:
        """End the process."""
        if self._current is not None:
            await self._current.close()
            self._current = None

    def _fix_for_answer(self, error: HookProcessError, otherwise: str) -> str:
        """Return how to fix a missing or invalid answer."""
        return REPLY if isinstance(error, SilentError) and self.stray.recent else otherwise

    async def _running(self) -> ProbedProcess:
        """Return the process, restarted if necessary. Raises HookProcessError."""
        if self._current is None or self._current.end is not None:
            await self.close()
            self._current = await self._start_process(self._spec)
        return self._current

    async def _start_process(self, spec: ProcessSpec) -> ProbedProcess:
        process = ProbedProcess(spec, self.stray)
        try:
            await process.start()
            async with asyncio.timeout(self._first):
                await process.call("hook.hello", self._hello())
        except TimeoutError:
            await process.close()
            raise SilentError(f"no answer to hook.hello within {self._first:g} s") from None
        except BaseException:
            await process.close()
            raise
        return process

    async def _call(self, method: str, params: Mapping[str, Any], *, within: float | None = None) -> Any:
        process = await self._running()
        within = self._timeout if within is None else within
        began = time.monotonic()
        self.stray.begin()
        try:
            async with asyncio.timeout(within):
                result = await process.call(method, params)
        except TimeoutError:
            printed = f"; it printed {self.stray.recent:.160}" if self.stray.recent else ""
            raise SilentError(f"no answer to {method} within {within:g} s{printed}") from None
        self._slowest = max(self._slowest, time.monotonic() - began)
        return result

    def _hello(self) -> dict[str, Any]:
        return hello_params(replace(self._spec, modes=self._modes))

    def may_ask(self, point: str) -> bool:
        """Return whether the hook is asked at this point."""
        return any(point in METHODS_OF[mode] for mode in self._modes)

    def _ok(self, check: str, words: str = "") -> None:
        self.verdicts.append(Verdict(check, "ok", words))

    def _warn(self, check: str, words: str, way_out: str) -> None:
        self.verdicts.append(Verdict(check, "warning", words, way_out))

    def _fail(self, check: str, words: str, way_out: str) -> None:
        self.verdicts.append(Verdict(check, "failure", words, way_out))

    async def _report_unanswered(self, check: str, error: HookProcessError, way_out: str) -> None:
        """Report an unanswered request; the next check gets a new process."""
        process = self._current
        await self.close()  # its output is complete then
        if isinstance(error, UnreadableReplyError):
            self._unreadable.append(check)
            if len(self._unreadable) == 1:
                self._fail(check, f"{_problem_of(error)}: {error.line:.160}", _fix_for_reply(error))
            return
        output = f" ({process.last_words:.200})" if process is not None and process.end and process.last_words else ""
        self._fail(check, f"{error}{output}", way_out)


def _problem_of(error: UnreadableReplyError) -> str:
    return f"this is {error.why}" if error.why.startswith(NO_JSON) else f"this is not a reply: {error.why}"


def _fix_for_reply(error: UnreadableReplyError) -> str:
    return JSON if error.why.startswith(NO_JSON) else REPLY


def _find_undone_changes(decision: Any, sent: Mapping[str, Any], findings: Findings) -> None:
    """Add findings for changes that the host would undo."""
    if not isinstance(decision, Modify):
        return
    if not keeps_system(sent["messages"], decision.changes.get("messages")):
        findings.note("system", "it changes a system message: the messages stay as they were, unless the policy allows it")
    if any(tool not in decision.changes.get("tools", sent["tools"]) for tool in sent["tools"]):
        findings.note("tools", "it changes tools that are not its own: they stay as they were, unless the policy allows it")
    for problem in parse_tools([tool for tool in decision.changes.get("tools", []) if tool not in sent["tools"]])[1]:
        findings.note("offer", f"it offers an invalid tool: {problem}", is_lost=True)
