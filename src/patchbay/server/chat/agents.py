"""Agents as models: a request that names an agent is a run of it, in every protocol."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from patchbay.agents import BaseAgent, InMemorySessionService, RunConfig, Runner
from patchbay.agents.content import Content, Event, Part, new_id
from patchbay.errors import ConfigurationError, InvalidRequestError, PatchbayError, RunNotFoundError
from patchbay.frontends.responses_answer import ResponsesEncoder, completed_fields
from patchbay.models.attempt import ATTEMPT_LOG, Attempt, counts_of
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply, ReasoningDelta, TextDelta
from patchbay.models.parts import NO_LOGPROBS, Answer, AnswerHead
from patchbay.server.chat.turn import ToolChatTurn, TurnText
from patchbay.server.http import Headers
from patchbay.transcript import text_of
from patchbay.types import Message, Reply

if TYPE_CHECKING:
    from patchbay.agents import BaseSessionService, Session
    from patchbay.agents.durable import DurableRuns
    from patchbay.hooks import HookScope
    from patchbay.loop import FinalEvent
    from patchbay.server.chat.model import TurnModel
    from patchbay.server.governance import Governance
    from patchbay.server.turns import Turn
    from patchbay.server.upstream import ProxyRequest

OWNER: Final = "patchbay-agent"
"""The ``owned_by`` of agents among the models."""

_USER: Final = "user"
_SYSTEM: Final = "<system_instruction>\n{}\n</system_instruction>"


class AgentFailedError(PatchbayError, RuntimeError):
    """A run of an agent ended without an answer."""

    code = "agent_failed"


class _SessionRunner(Runner):
    """A runner whose hooks see the client's name of a session, and ``turn_id``."""

    turn_id = ""

    def _hook_scope(self, session: Session) -> HookScope:
        inbound = {"channel": "chat", "chat_id": session.id, "sender_id": session.user_id}
        return replace(super()._hook_scope(session), session_key=session.id, turn_id=self.turn_id, context={"inbound": inbound})


class ServedAgents:
    """The agents of a server, by name. Sessions that clients name are stored in ``sessions``, others last for a request.

    The runs call the hooks of ``governance``. Responses in the background are runs of ``durable``, which has the sessions then.
    Raises ConfigurationError for two agents of one name.
    """

    def __init__(
        self,
        agents: Iterable[BaseAgent],
        governance: Governance,
        sessions: BaseSessionService | None,
        durable: DurableRuns | None = None,
    ) -> None:
        self.durable = durable
        self._sessions = sessions if sessions is not None else InMemorySessionService()
        self._governance = governance
        self._created = int(time.time())
        self._agents: dict[str, BaseAgent] = {}
        for agent in agents:
            if agent.name in self._agents:
                raise ConfigurationError(f"There are two agents with the name {agent.name!r}.")
            self._agents[agent.name] = agent

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._agents

    @property
    def models(self) -> list[dict[str, Any]]:
        """The agents as entries of a list of models."""
        return [{"id": name, "object": "model", "created": self._created, "owned_by": OWNER} for name in self._agents]

    def model(self, name: str, session: str, turn_id: str = "", run_id: str = "") -> AgentModel:
        """Return the agent ``name`` as a model, with the history of ``session``, "" for none, and the id of its only turn.

        ``run_id`` is that of a durable run, which is its only turn.
        """
        durable = self.durable if run_id else None
        service = self._sessions if session or durable is not None else InMemorySessionService()
        agent, hooks, media = self._agents[name], self._governance.hooks, self._governance.media
        runner = _SessionRunner(agent, agent.name, service, hooks=hooks, media=media)
        runner.durable = durable
        return AgentModel(runner, session, turn_id, run_id if durable is not None else "")

    async def end_of(self, response: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the fields with which a response in the background has ended; see ResponseRuns."""
        if self.durable is None or response["model"] not in self:
            return None
        try:
            run = await self.durable.get(response["id"])
        except RunNotFoundError:
            return None
        if run.status == "completed":
            return completed_fields(run.text or "", run.usage, run.ended_at or time.time())
        return {"status": run.status, "error": run.error} if run.is_over else {}

    async def cancel(self, response: Mapping[str, Any]) -> None:
        """Cancel the run of a response, if it has one."""
        if self.durable is not None and response["model"] in self:
            with suppress(RunNotFoundError):
                await self.durable.cancel(response["id"])

    async def aclose(self) -> None:
        """Close the connections of the agents' models, and the sessions."""
        for agent in self._agents.values():
            await Runner(agent).aclose()
        await self._sessions.close()


class AgentModel:
    """A ChatModel whose answers are runs of an agent, with its own tools and parameters; those of the request are ignored.

    A new session begins with the earlier messages of the request; one that exists has its own history, and gets the last message
    alone. ``turn_id`` is that of the next run, "" for a new one, and ``calls`` are the tools that the last one called; other
    attributes are those of UpstreamModel.
    """

    first: Answer | None = None
    logprobs = NO_LOGPROBS
    tools = 0

    def __init__(self, runner: _SessionRunner, session: str, turn_id: str = "", run_id: str = "") -> None:
        self.last = Answer()
        self.headers: Headers = []
        self.usages: list[Mapping[str, Any]] = []
        self.calls: list[str] = []
        self.turn_id = turn_id
        self._runner = runner
        self._session = session
        self._run_id = run_id
        self.name = runner.agent.name

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Run the agent with the last message. Raises AgentFailedError, InvalidRequestError."""
        self.calls.clear()
        self._runner.turn_id = self.turn_id or new_id()
        earlier, message = self._split(request.messages)
        service, session = self._runner.session_service, self._session or self._run_id or f"request-{new_id()}"
        async with service.lock(self.name, _USER, session):
            if await service.get_session(self.name, _USER, session) is None:
                await self._begin(session, earlier)
        config = RunConfig(streaming=request.stream)
        run = self._runner.run(_USER, session, message, config, run_id=self._run_id or None)
        text, thoughts = TurnText(), TurnText()
        partial: set[tuple[str, str | None]] = set()
        answer: list[str] = []
        reasoning: list[str] = []
        reason: str | None = None
        try:
            async with aclosing(run):
                async for event in run:
                    if event.error_code is not None:
                        who = event.author or self.name
                        raise AgentFailedError(f"The agent {who} has failed: {event.error_code}: {event.error_message}")
                    if event.output is not None and event.output.text:
                        answer.append(text.add_apart(event.output.text))
                        yield TextDelta(answer[-1])
                    if not event.partial:
                        self.calls += [call.name for call in event.get_function_calls()]
                    reason = event.finish_reason or reason
                    source = (event.author, event.branch)
                    is_known = not event.partial and source in partial  # its text came in pieces
                    for part in event.content.parts if event.content is not None and not is_known else ():
                        if part.text and part.thought:
                            reasoning.append(thoughts.add(part.text))
                            yield ReasoningDelta(reasoning[-1])
                        elif part.text and part.function_response is None:
                            answer.append(text.add(part.text))
                            yield TextDelta(answer[-1])
                    if event.partial and event.content is not None:
                        partial.add(source)
                    elif event.content is not None:
                        partial.discard(source)
                        text.round_over()
                        thoughts.round_over()
        finally:
            if run.context is not None:
                self.tools = run.context.shared.tools
            if not (self._session or self._run_id):
                await service.delete_session(self.name, _USER, session)
        if (counts := run.usage.counts()) is not None:
            self.usages.append(counts)
        yield ModelReply(Reply("".join(answer), "".join(reasoning) or None), reason or "stop", run.usage)

    def note_run(self, turn: Turn) -> None:
        """Keep the last run as an attempt, where its models are not asked over HTTP."""
        if not turn.attempts:
            calls = tuple([("", name, "") for name in self.calls])
            counts = counts_of(self.usages[-1] if self.usages else None)
            turn.add_attempt(Attempt(None, None, turn.began, tools=self.tools, calls=calls, counts=counts, is_cut=True))

    def _split(self, messages: Sequence[Message]) -> tuple[list[tuple[str, str]], str]:
        """Return the author and the text of the earlier messages, and the message of the user that is answered."""
        last = max((at for at, each in enumerate(messages) if each.get("role") in ("assistant", "tool")), default=-1)
        earlier: list[tuple[str, str]] = []
        asked: list[str] = []
        for at, each in enumerate(messages):
            role, content = each.get("role"), each.get("content")
            if isinstance(content, list) and any(part.get("type") not in ("text", "input_text") for part in content):
                raise InvalidRequestError(f"The agent {self.name} takes text only.", param="messages")
            text = text_of(content)
            if role == "user" and at > last:
                asked.append(text)
            elif role == "assistant" and text:
                earlier.append((self.name, text))
            elif role in ("user", "system", "developer") and text:
                earlier.append((_USER, text if role == "user" else _SYSTEM.format(text)))
        if not asked:
            raise InvalidRequestError(f"The agent {self.name} needs a last message of the user.", param="messages")
        return earlier, "\n\n".join(asked)

    async def _begin(self, session_id: str, earlier: Sequence[tuple[str, str]]) -> None:
        """Create a session with these messages."""
        service = self._runner.session_service
        session = await service.create_session(self.name, _USER, agent_name=self.name, session_id=session_id)
        invocation = new_id()
        for author, text in earlier:
            content = Content("user" if author == _USER else "model", [Part(text)])
            await service.append_event(session, Event(author=author, invocation_id=invocation, content=content))


@dataclass(eq=False, kw_only=True)
class AgentTurn(ToolChatTurn):
    """A chat completion that is a run of an agent. ``name`` is the agent's."""

    agents: ServedAgents
    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._own_head = AnswerHead(f"chatcmpl-{new_id()}", int(time.time()), self.name)

    async def run_turn(self, request: ProxyRequest) -> None:
        """Run the agent; the requests of its models are attempts of the turn."""
        log = ATTEMPT_LOG.set(request.turn)
        try:
            await super().run_turn(request)
        finally:
            ATTEMPT_LOG.reset(log)
            if request.turn is not None:
                self._agent_model.note_run(request.turn)

    def _make_model(self, request: ProxyRequest) -> AgentModel:
        request.watch.wait_elsewhere()
        self.has_run = True
        response = self.encoder.response if isinstance(self.encoder, ResponsesEncoder) else {}
        run_id = response["id"] if response.get("background") is True else ""
        model = self._agent_model = self.agents.model(self.name, self.session, request.id, run_id)
        return model

    def _head(self, _model: TurnModel) -> AnswerHead:
        return self._own_head

    def _report(self, _end: FinalEvent) -> dict[str, Any]:
        return {"agent": self.name, "session": self.session or None}
