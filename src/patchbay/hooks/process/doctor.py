"""Checks of ``patchbay hooks doctor``: sends sample requests to a hook's process and reports problems with a way to fix each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from patchbay._config import json_kind
from patchbay._text import plural
from patchbay.hooks.process.child import HookProcess, HookProcessError, HookReplyError, ProcessSpec, UnreadableReplyError
from patchbay.hooks.process.client import hello_params, tools_of
from patchbay.hooks.process.protocol import METHODS_OF, MODES, POINTS, decode_params
from patchbay.hooks.process.replies import Findings, InvalidReplyError, parse_tools, read_decision
from patchbay.hooks.tools import keeps_system
from patchbay.hooks.types import TRACE_PATHS, Ask, Modify, Respond

START: Final = (
    "There is no shell: name the interpreter (python3 hook.py), a path that is right from here, each argument by itself."
)
FLUSH: Final = (
    "Answer each request with one line that has its id, {} where there is nothing to say, and flush standard output behind it."
)
REPLY: Final = (
    'An answer is one line, written with a JSON library: {"jsonrpc":"2.0","id":1,"result":{}}; its id is the whole number of the '
    "request."
)
STAY: Final = (
    "Run the command by hand: it says why. Read requests from standard input until it ends, as bytes in UTF-8, each line in a "
    "try of its own."
)
ANSWERS: Final = 'Which actions and members each answer has: docs/guides/hook-processes.md, "The wire".'
OFFER: Final = (
    'A tool is {"type":"function","function":{"name":"...","description":"...","parameters":{...}}}, with a JSON Schema.'
)
NOT_ASKED: Final = 'Put before_tool into its "intercept": without it, calls of its tools have no answer.'
BOTH: Final = "A hook that is asked before_llm is asked after_llm, too, and before_tool brings after_tool: answer them with {}."
UNKNOWN: Final = "Answer methods that you do not know with the error code -32601: later hosts may have more."
STDERR: Final = "Print to standard error: standard output is for answers only. A message without an id has no answer."
END: Final = "End when standard input ends: the host has closed it, or is gone."

C_LOCALE: Final = {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONUNBUFFERED": ""}
"""The environment of the checks, a service's: text streams are not UTF-8, and output is buffered."""

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
        result = {"for_llm": "done", "silent": False, "is_error": False, "async": False}
        return {**params, "result": result, "duration": 1_500_000}
    return {**params, "source": ""}


class SilentError(HookProcessError):
    """No answer in time."""


Outcome = Literal["ok", "warning", "failure"]

END_SECONDS: Final = 2.0
_MAX_PRINTED: Final = 100


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
        if await doctor.check_hello():
            for point in POINTS:
                if doctor.may_ask(point):
                    await doctor.check_point(point)
            doctor.check_pairs()
            await doctor.check_unknown_method()
            await doctor.check_event()
            await doctor.check_end()
            doctor.check_other_output()
    finally:
        await doctor.close()
    return doctor.verdicts


class _Doctor:
    """The checks, on one process; a new one is started when it has ended or does not answer."""

    def __init__(self, spec: ProcessSpec, modes: frozenset[str] | None, timeout: float) -> None:
        self.verdicts: list[Verdict] = []
        limits = replace(spec.limits, eof_grace=END_SECONDS, term_grace=END_SECONDS)
        self._spec = replace(spec, modes=modes or frozenset(MODES), env={**C_LOCALE, **spec.env}, limits=limits)
        self._tries_all_modes = modes is None
        self._timeout = timeout
        self._first = max(timeout, spec.limits.hello)  # includes the interpreter's start
        self._unknown: set[str] = set()
        self._printed: list[str] = []
        self._process: HookProcess | None = None

    async def check_hello(self) -> bool:
        """Start the process and greet it; return whether there is more to check."""
        check = "hook.hello"
        try:
            hello = await self._start()
        except HookProcessError as error:
            await self._report_unanswered(check, error)
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

    async def check_point(self, point: str) -> None:
        """Send a sample request, and read the answer as the host does."""
        check = f"hook.{point}"
        params = sample_params(point)
        findings: Findings = {}
        try:
            result = await self._call(check, params)
            decision = read_decision(point, result, findings, params, decode_params(point, params))
        except InvalidReplyError as error:
            self._fail(check, str(error), ANSWERS)
        except HookProcessError as error:
            if isinstance(error, HookReplyError) and self._tries_all_modes and "an error: " in str(error):
                self._unknown.add(point)
                self._ok(check, f"not for this hook: {str(error).partition('an error: ')[2]}")
            else:
                await self._report_unanswered(check, error)
        else:
            if point == "before_llm":
                _find_undone_changes(decision, params, findings)
            if isinstance(decision, Respond):
                findings["respond"] = "it answers for a tool that is not its own, which the host's policy may forbid"
            if findings:
                self.verdicts.append(Verdict(check, "warning", "; ".join(findings.values()), ANSWERS))
            else:
                self._ok(check, _describe(point, decision, params))

    def check_pairs(self) -> None:
        """Check that a hook knows both methods of a mode, since it is asked both."""
        for first, second in (METHODS_OF["llm"], METHODS_OF["tool"]):
            if (first in self._unknown) != (second in self._unknown):
                known, other = (second, first) if first in self._unknown else (first, second)
                self._fail(f"hook.{first} and hook.{second}", f"it knows {known} and not {other}", BOTH)

    async def check_unknown_method(self) -> None:
        """Send a request that no hook knows."""
        check = "unknown method"
        try:
            await self._call("hook.patchbay_doctor", {})
        except HookReplyError:
            self._ok(check)
        except HookProcessError as error:
            await self._report_unanswered(check, error)
        else:
            self.verdicts.append(Verdict(check, "warning", "it answers as if it knew the method", UNKNOWN))

    async def check_event(self) -> None:
        """Send an event, which has no answer, and then a request."""
        check = "hook.runtime_event"
        try:
            (await self._running()).notify(check, EVENT)
            await self._call("hook.hello", hello_params(self._spec))
        except HookProcessError as error:
            await self._report_unanswered(check, error)
        else:
            self._ok(check)

    async def check_end(self) -> None:
        """Close standard input, as the host does to end a hook."""
        check = "end of standard input"
        try:
            process = await self._running()
        except HookProcessError as error:
            await self._report_unanswered(check, error)
            return
        await process.close()
        how = process.exit or "it is still there"
        if "SIGTERM" in how or "SIGKILL" in how or process.exit is None:
            self.verdicts.append(Verdict(check, "warning", f"it did not end within {END_SECONDS:g} s, but {how}", END))
        else:
            self._ok(check, how)

    def check_other_output(self) -> None:
        """Report lines on standard output that were not answers."""
        check = "standard output"
        if self._printed:
            self._fail(check, f"{plural(len(self._printed), 'line')} not answers, the first: {self._printed[0]:.120}", STDERR)
        else:
            self._ok(check)

    async def close(self) -> None:
        """End the process."""
        if self._process is not None:
            await self._process.close()

    def may_ask(self, point: str) -> bool:
        """Return whether the hook is asked at this point."""
        return point in self._spec.methods

    async def _start(self) -> Any:
        """Start a process, and return its answer to hello. Raises HookProcessError."""
        await self.close()
        self._process = HookProcess(self._spec, stray=self._keep_printed, stderr=lambda _line: None)
        await self._process.start()
        return await self._call("hook.hello", hello_params(self._spec), within=self._first)

    async def _running(self) -> HookProcess:
        """Return the process, started again if it has ended. Raises HookProcessError."""
        if self._process is None or self._process.end is not None:
            await self._start()
        assert self._process is not None
        return self._process

    async def _call(self, method: str, params: Mapping[str, Any], *, within: float | None = None) -> Any:
        process = await self._running()
        within = self._timeout if within is None else within
        printed = len(self._printed)
        try:
            async with asyncio.timeout(within):
                return await process.call(method, params)
        except TimeoutError:
            words = "".join(f"; it printed {line:.160}" for line in self._printed[printed : printed + 1])
            raise SilentError(f"no answer to {method} within {within:g} s{words}") from None

    def _keep_printed(self, line: str) -> None:
        if len(self._printed) < _MAX_PRINTED:
            self._printed.append(line)

    def _ok(self, check: str, words: str = "") -> None:
        self.verdicts.append(Verdict(check, "ok", words))

    def _fail(self, check: str, words: str, way_out: str) -> None:
        self.verdicts.append(Verdict(check, "failure", words, way_out))

    async def _report_unanswered(self, check: str, error: HookProcessError) -> None:
        """Report an unanswered request; the next check gets a new process."""
        process = self._process
        await self.close()  # its output is complete then
        words, way_out = str(error), STAY
        if isinstance(error, UnreadableReplyError):
            words, way_out = f"{words}: {error.line:.160}", REPLY
        elif isinstance(error, SilentError):
            way_out = REPLY if "; it printed " in words else FLUSH
        elif process is None or not process.pid:
            way_out = START
        elif process.last_words:
            words = f"{words} ({process.last_words:.300})"
        self._fail(check, words, way_out)


def _describe(point: str, decision: Any, params: Mapping[str, Any]) -> str:
    if point == "approve_tool":
        return "asks a person" if isinstance(decision, Ask) else "approves" if decision.approved else "does not approve"
    if not isinstance(decision, Modify):
        return "" if decision is None else type(decision).__name__
    changed = ", ".join(sorted(decision.changes))
    if point == "after_llm" and params["response"].get("tool_calls"):
        if decision.changes.get("tool_calls") == []:
            return "takes the calls out of the answer: the turn ends with its content"
        if "content" in decision.changes and "tool_calls" not in decision.changes:
            return f"changes {changed}: the calls stay, and are carried out"
    return f"changes {changed}"


def _find_undone_changes(decision: Any, sent: Mapping[str, Any], findings: Findings) -> None:
    """Add findings for changes that the host would undo."""
    if not isinstance(decision, Modify):
        return
    if not keeps_system(sent["messages"], decision.changes.get("messages")):
        findings["system"] = "it changes a system message: the messages stay as they were, unless the policy allows it"
    tools = decision.changes.get("tools", sent["tools"])
    if any(tool not in tools for tool in sent["tools"]):
        findings["tools"] = "it changes tools that are not its own: they stay as they were, unless the policy allows it"
    for problem in parse_tools([tool for tool in tools if tool not in sent["tools"]])[1]:
        findings["offer"] = f"it offers an invalid tool: {problem}"
