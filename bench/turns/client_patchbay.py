"""Patchbay over the real client: ``wrap`` by hand, ``ToolRunner`` and ``LlmAgent``, natively and as text."""

from __future__ import annotations

import json

import msgspec

from bench.turns import cases, client
from patchbay import ToolRunner, wrap
from patchbay.agents import GenerateContentConfig, InMemorySessionService, LlmAgent, RunConfig, Runner
from patchbay.agents.content import Event
from patchbay.agents.convert import from_messages
from patchbay.tools import collect_tools


class Wrapped(client.Turns):
    """The wrapped client, in the place of the floor's."""

    checks = False

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._client = wrap(self.client(), tools="text" if self.writes else "native")
        self._noop = self.tools()[0]
        self._tools = [tool.spec.to_openai() for tool in collect_tools(self.tools()).values()]
        self._history = self.history()

    async def turn(self) -> object:
        create = self._client.chat.completions.create
        messages = [
            {"role": "system", "content": cases.INSTRUCTION},
            *self._history,
            {"role": "user", "content": cases.MESSAGE},
        ]
        said = (await create(model=client.MODEL, messages=messages, tools=self._tools)).choices[0].message
        call = said.tool_calls[0]
        result = await self._noop(**json.loads(call.function.arguments))
        messages += [said.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": result}]
        return (await create(model=client.MODEL, messages=messages, tools=self._tools)).choices[0].message.content


class WrappedText(Wrapped):
    """The same with a model that writes."""

    writes = True


class Run(client.Turns):
    """Turns of a ToolRunner."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._runner = ToolRunner(
            self.client(), tools=self.tools(), tool_mode="text" if self.writes else "native", tool_search=None
        )
        self._history = self.history()

    async def turn(self) -> object:
        system, user = {"role": "system", "content": cases.INSTRUCTION}, {"role": "user", "content": cases.MESSAGE}
        return (await self._runner.run([system, *self._history, user], client.MODEL)).content


class RunText(Run):
    """The same with a model that writes."""

    writes = True


class Agent(client.Turns):
    """Turns of an agent, each the second run that its session has seen: the first was before the clock."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        agent = LlmAgent(
            name="bench",
            model=self.client(),
            instruction=cases.INSTRUCTION,
            tools=self.tools(),
            tool_mode="text" if self.writes else "native",
            tool_search=None,
            generate_content_config=GenerateContentConfig(extra={"model": client.MODEL}),
        )
        self._sessions = InMemorySessionService()
        self._runner = Runner(agent=agent, app_name="bench", session_service=self._sessions)
        self._number = 0
        self._contents = from_messages(self.history())
        self._config = RunConfig(max_history_events=None)

    async def turn(self) -> object:
        if not self._number:
            await self.forget()
        return await self._run()

    async def _run(self) -> object:
        said = None
        async for event in self._runner.run("u", f"s{self._number}", cases.MESSAGE, self._config):
            if event.is_final_response() and event.content is not None:
                said = event.content.parts[0].text
        return said

    async def forget(self) -> None:
        """Begin the next session, with its history and a first run."""
        counted = self.model_calls, self.tool_runs
        await self._sessions.delete_session("bench", "u", f"s{self._number}")
        self._number += 1
        session = await self._sessions.create_session("bench", "u", session_id=f"s{self._number}")
        for content in self._contents:
            author = "user" if content.role == "user" and content.parts[0].function_response is None else "bench"
            await self._sessions.append_event(
                session, Event(author=author, invocation_id="i", content=msgspec.structs.replace(content))
            )
        await self._run()
        self.model_calls, self.tool_runs = counted


class AgentText(Agent):
    """The same with a model that writes."""

    writes = True
