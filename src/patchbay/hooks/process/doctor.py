"""Tries a hook: plays requests to its process, and says of each what is wrong with the answer and what to do about it.

What lives here: the checks. What does not: the requests (``canned``), what to do about what is found (``advice``), and how
verdicts are shown (``patchbay hooks doctor``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from patchbay.hooks.decisions import Ask, Modify, Respond
from patchbay.hooks.injection import keeps_system
from patchbay.hooks.process import advice, answers, canned
from patchbay.hooks.process.errors import HookProcessError, HookReplyError, UnreadableReplyError
from patchbay.hooks.process.hook import hello_params, tools_of
from patchbay.hooks.process.offers import read_offers
from patchbay.hooks.process.patient import Case, Patient, SilentError, Strays
from patchbay.hooks.process.shapes import Findings, WrongTypeError, kind_of
from patchbay.hooks.process.spec import METHODS_OF, MODES, ProcessSpec
from patchbay.hooks.process.wire import NO_JSON, notification_line
from patchbay.hooks.views import LLMRequest

Outcome = Literal["ok", "warning", "failure"]

POINTS: Final = tuple(canned.TRACE)
AT_ONCE: Final = 8
END_SECONDS: Final = 2.0
_IMPATIENT: Final = 0.3
"""Seconds that a process has to end where that is not what is looked at."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one check. ``words`` say what was seen, ``way_out`` what to do about it."""

    check: str
    outcome: Outcome
    words: str = ""
    way_out: str = ""


async def examine(spec: ProcessSpec, *, modes: frozenset[str] | None = None, timeout: float = 5.0) -> list[Verdict]:  # noqa: ASYNC109
    """Try the hook of ``spec``; each answer has ``timeout`` seconds, the first of a process at least what its limits give it.

    ``modes`` are those that it is configured for, and must answer; with None it is tried for all, and is free not to know some.
    """
    doctor = _Doctor(spec, modes, timeout)
    try:
        if not await doctor.greets():
            return doctor.verdicts
        for point in POINTS:
            if modes is None or any(point in METHODS_OF[mode] for mode in modes):
                await doctor.answers(point)
        doctor.pairs()
        await doctor.refuses_unknown_methods()
        doctor.strays.counts_replies = False
        await doctor.keeps_quiet_about_events()
        doctor.strays.counts_replies = True
        await doctor.takes_several_at_once()
        await doctor.lives_elsewhere()
        await doctor.ends()
        doctor.prints_nothing_else()
        doctor.writes_json()
    finally:
        await doctor.close()
    return doctor.verdicts


class _Doctor:
    """The checks, in turn on one process; where that has ended, or does not answer, the next check gets another one."""

    def __init__(self, spec: ProcessSpec, modes: frozenset[str] | None, timeout: float) -> None:
        self.verdicts: list[Verdict] = []
        self._spec = replace(spec, limits=replace(spec.limits, eof_grace=_IMPATIENT))
        self._modes = frozenset(MODES) if modes is None else modes
        self._is_free = modes is None
        self._timeout = timeout
        self._first = max(timeout, spec.limits.hello)  # it has to come up before it can answer
        self.strays = Strays()
        self._unknown: set[str] = set()
        self._unreadable: list[str] = []
        self._slowest = 0.0
        self._current: Patient | None = None

    # The checks.

    async def greets(self) -> bool:
        check = "hook.hello"
        self._current = patient = Patient(self._spec, self.strays)
        try:
            await patient.start()
            hello = await self._asked(check, self._hello(), within=self._first)
        except HookProcessError as error:
            await self.close()
            said = f" ({patient.last_words:.300})" if patient.last_words else ""
            if isinstance(error, UnreadableReplyError):
                self._fail(check, f"{_what(error)}: {error.line:.160}", _mend(error))
                return False
            self._fail(check, f"{error}{said}", self._way_in(patient, error))
            return False
        if hello is not None and not isinstance(hello, dict):
            self._fail(check, f"the result is {kind_of(hello)}", 'Answer with an object: {"ok":true}.')
            return False
        offered, problems = read_offers(tools_of(hello))
        if problems:
            self._fail(check, f"it offers a tool that is none: {problems[0]}", advice.OFFER)
        elif offered and not self._may_ask("before_tool"):
            self._fail(check, "it offers tools that it is not asked for", advice.NOT_ASKED)
        else:
            self._ok(check, f"offers {'1 tool' if len(offered) == 1 else f'{len(offered)} tools'}" if offered else "")
        return True

    def _way_in(self, patient: Patient, error: HookProcessError) -> str:
        """Say what is to be done about a process that did not greet."""
        if not patient.pid:
            return advice.START
        if isinstance(error, SilentError):
            return self._way_out(error, advice.FLUSH)
        return advice.BY_HAND if patient.last_words else advice.LOOP

    async def answers(self, point: str) -> None:
        check = f"hook.{point}"
        params = canned.params_of(point)
        findings = Findings()
        try:
            result = await self._asked(check, params)
            words = self._read(point, result, params, findings)
        except WrongTypeError as error:
            self._fail(check, str(error), "A wrong type anywhere refuses the whole answer.")
        except HookProcessError as error:
            if isinstance(error, HookReplyError) and self._is_free and "an error: " in str(error):
                self._unknown.add(point)
                self._ok(check, f"not for this hook: {str(error).partition('an error: ')[2]}")
                return
            has_ended = self._current is not None and self._current.end is not None
            await self._failed(check, error, advice.CATCH if has_ended else self._way_out(error, advice.ANSWER_ALL))
        else:
            if findings.found:
                tell = self._fail if findings.lost else self._warn
                tell(check, "; ".join(findings.found.values()), advice.ANSWERS)
            else:
                self._ok(check, words)

    def _read(self, point: str, result: Any, params: Mapping[str, Any], findings: Findings) -> str:
        """Read an answer as the host does, and say what it decides. Raises WrongTypeError."""
        shown = {name: params.get(name) for name in ("model", "messages", "tools", "options")}
        read = answers.read_answer(point, result, findings, shown=shown if point == "before_llm" else None)
        if point == "approve_tool":
            said = answers.approval(read)
            return "asks a person" if isinstance(said, Ask) else "approves" if said.approved else "does not approve"
        decision: Any
        if point == "before_llm":
            decision = answers.llm_decision(read, findings, LLMRequest(Case(params), point), shown)
            _note_oversteps(decision, shown, findings)
        elif point == "after_llm":
            decision = answers.response_decision(read, findings, params["response"])
        elif point == "before_tool":
            decision = answers.call_decision(read, findings, {"tool": params["tool"], "arguments": params["arguments"]})
            if isinstance(decision, Respond):
                findings.note("responds", "it answers for a tool that is not its own, which the host's policy may forbid")
        else:
            decision = answers.result_decision(read, findings, params["result"])
        if isinstance(decision, Modify):
            if point == "after_llm" and params["response"].get("tool_calls"):
                if decision.changes.get("tool_calls") == []:
                    return "takes the calls out of the answer: the turn ends with its content"
                if "content" in decision.changes and "tool_calls" not in decision.changes:
                    return f"changes {', '.join(sorted(decision.changes))}: the calls stay, and are carried out"
            return f"changes {', '.join(sorted(decision.changes))}"
        return "" if decision is None else type(decision).__name__

    def pairs(self) -> None:
        for first, second in (("before_llm", "after_llm"), ("before_tool", "after_tool")):
            if (first in self._unknown) != (second in self._unknown):
                known, other = (second, first) if first in self._unknown else (first, second)
                self._fail(f"hook.{first} and hook.{second}", f"it knows {known} and not {other}", advice.BOTH)

    async def refuses_unknown_methods(self) -> None:
        check = "unknown method"
        try:
            await self._asked("hook.patchbay_doctor", {})
        except HookReplyError:
            self._ok(check)
        except HookProcessError as error:
            await self._failed(check, error, advice.UNKNOWN)
        else:
            self._warn(check, "it answers as if it knew the method", advice.UNKNOWN)

    async def takes_several_at_once(self) -> None:
        check = f"{AT_ONCE} requests at once"
        began = time.monotonic()
        try:
            lines = (patient := await self._patient()).lines
            await asyncio.gather(*(self._asked("hook.hello", self._hello()) for _ in range(AT_ONCE)))
        except HookProcessError as error:
            await self._failed(check, error, advice.ANSWER_ALL)
            return
        if (came := patient.lines - lines) > AT_ONCE:
            self._warn(check, f"{came} lines came back for {AT_ONCE} requests", "Answer each request once.")
        else:
            self._ok(check, f"{(time.monotonic() - began) * 1000 / AT_ONCE:.2f} ms each")

    async def keeps_quiet_about_events(self) -> None:
        check = "hook.runtime_event"
        try:
            lines = (patient := await self._patient()).lines
            patient.write(notification_line(check, canned.EVENT))
            await self._asked("hook.hello", self._hello())
        except HookProcessError as error:
            await self._failed(check, error, advice.QUIET)
            return
        if patient.lines - lines > 1:
            self._warn(check, "it answers a message that has no id", advice.QUIET)
        else:
            self._ok(check)

    async def lives_elsewhere(self) -> None:
        """Try it where text streams are not UTF-8, and where Python keeps what is printed until it is flushed."""
        check = "C locale, buffered output"
        point = next((point for point in POINTS if point not in self._unknown and self._may_ask(point)), None)
        if point is None:
            return
        await self.close()
        strays = self.strays.count
        env = {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONUNBUFFERED": ""}
        try:
            self._current = await self._started(replace(self._spec, env={**self._spec.env, **env}))
            await self._asked(f"hook.{point}", canned.params_of(point))
        except HookProcessError as error:
            await self._failed(check, error, advice.FLUSH if isinstance(error, SilentError) else advice.BYTES)
        else:
            if self.strays.count > strays:
                self._fail(check, f"it printed {self.strays.recent:.100}", advice.BYTES)
            else:
                self._ok(check)
        await self.close()

    async def ends(self) -> None:
        for check, grace, way_out in (
            ("end of standard input", END_SECONDS, advice.END),
            ("SIGTERM", 0.0, "End on SIGTERM; most programs do by themselves."),
        ):
            limits = replace(self._spec.limits, eof_grace=grace, term_grace=END_SECONDS)
            try:
                patient = await self._started(replace(self._spec, limits=limits))
            except HookProcessError as error:
                self._fail(check, str(error), advice.BY_HAND)
                continue
            await patient.close()
            how = patient.exit or "it is still there"
            if "SIGKILL" in how or "still" in how:
                self._warn(check, "it had to be killed", way_out)
            elif "SIGTERM" in how and grace:
                self._warn(check, f"it did not end within {grace:g} s, but on SIGTERM", way_out)
            else:
                self._ok(check, how)

    def prints_nothing_else(self) -> None:
        check = "standard output"
        if self.strays.count:
            self._fail(check, f"{self.strays.count} lines are no answers, the first: {self.strays.first:.120}", advice.STDERR)
        else:
            self._ok(check)
        self._ok("slowest answer", f"{self._slowest * 1000:.1f} ms")

    def writes_json(self) -> None:
        """Say in how many checks the same was wrong that was told of the first."""
        if others := self._unreadable[1:]:
            place = next(place for place, each in enumerate(self.verdicts) if each.check == self._unreadable[0])
            first = self.verdicts[place]
            self.verdicts[place] = replace(
                first, words=f"{first.words}; and so in {len(others)} more check{'' if len(others) == 1 else 's'}"
            )

    # What they are made of.

    async def close(self) -> None:
        """End the process."""
        if self._current is not None:
            await self._current.close()
            self._current = None

    def _way_out(self, error: HookProcessError, otherwise: str) -> str:
        """Return what to do about an answer that did not come, or was none."""
        return advice.REPLY if isinstance(error, SilentError) and self.strays.recent else otherwise

    async def _patient(self) -> Patient:
        """Return the process. Raises HookProcessError where another one is needed and does not start."""
        if self._current is None or self._current.end is not None:
            await self.close()
            self._current = await self._started(self._spec)
        return self._current

    async def _started(self, spec: ProcessSpec) -> Patient:
        patient = Patient(spec, self.strays)
        try:
            await patient.start()
            async with asyncio.timeout(self._first):
                await patient.call("hook.hello", self._hello())
        except TimeoutError:
            await patient.close()
            raise SilentError(f"no answer to hook.hello within {self._first:g} s") from None
        except BaseException:
            await patient.close()
            raise
        return patient

    async def _asked(self, method: str, params: Mapping[str, Any], *, within: float | None = None) -> Any:
        patient = await self._patient()
        within = self._timeout if within is None else within
        began = time.monotonic()
        self.strays.begin()
        try:
            async with asyncio.timeout(within):
                result = await patient.call(method, params)
        except TimeoutError:
            printed = f"; it printed {self.strays.recent:.160}" if self.strays.recent else ""
            raise SilentError(f"no answer to {method} within {within:g} s{printed}") from None
        self._slowest = max(self._slowest, time.monotonic() - began)
        return result

    def _hello(self) -> dict[str, Any]:
        return hello_params(replace(self._spec, modes=self._modes))

    def _may_ask(self, point: str) -> bool:
        return any(point in METHODS_OF[mode] for mode in self._modes)

    def _ok(self, check: str, words: str = "") -> None:
        self.verdicts.append(Verdict(check, "ok", words))

    def _warn(self, check: str, words: str, way_out: str) -> None:
        self.verdicts.append(Verdict(check, "warning", words, way_out))

    def _fail(self, check: str, words: str, way_out: str) -> None:
        self.verdicts.append(Verdict(check, "failure", words, way_out))

    async def _failed(self, check: str, error: HookProcessError, way_out: str, *, outcome: Outcome = "failure") -> None:
        """Say that a request was not answered as it should be; the next check gets another process."""
        patient = self._current
        await self.close()  # by then all that it had to say is there
        if isinstance(error, UnreadableReplyError):
            self._unreadable.append(check)
            if len(self._unreadable) == 1:
                self._fail(check, f"{_what(error)}: {error.line:.160}", _mend(error))
            return
        said = f" ({patient.last_words:.200})" if patient is not None and patient.end and patient.last_words else ""
        self.verdicts.append(Verdict(check, outcome, f"{error}{said}", way_out))


def _what(error: UnreadableReplyError) -> str:
    return f"this is {error.why}" if error.why.startswith(NO_JSON) else f"this is no reply: {error.why}"


def _mend(error: UnreadableReplyError) -> str:
    return advice.JSON if error.why.startswith(NO_JSON) else advice.REPLY


def _note_oversteps(decision: Any, shown: Mapping[str, Any], findings: Findings) -> None:
    """Take note of what the host would undo."""
    if not isinstance(decision, Modify):
        return
    if not keeps_system(shown["messages"], decision.changes.get("messages")):
        findings.note("system", "it changes a system message: the messages stay as they were, unless the policy allows it")
    if any(tool not in decision.changes.get("tools", shown["tools"]) for tool in shown["tools"]):
        findings.note("tools", "it changes tools that are not its own: they stay as they were, unless the policy allows it")
    for problem in read_offers([tool for tool in decision.changes.get("tools", []) if tool not in shown["tools"]])[1]:
        findings.note("offer", f"it offers a tool that is none: {problem}", is_lost=True)
