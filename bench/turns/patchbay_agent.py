"""Patchbay's ``LlmAgent`` with its ``Runner``: sessions, state, events. What the bars are about."""

from __future__ import annotations

from bench.turns import cases
from bench.turns.patchbay_model import FakeModel
from patchbay.agents import InMemorySessionService, LlmAgent, Runner


class Row(cases.Turns):
    """Turns of an agent, each in a new session, which the runner makes."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        agent = LlmAgent(name="bench", model=FakeModel(self), instruction=cases.INSTRUCTION, tools=self.tools())
        self._sessions = InMemorySessionService()
        self._runner = Runner(agent=agent, app_name="bench", session_service=self._sessions)
        self._number = 0

    async def turn(self) -> object:
        self._number += 1
        said = None
        async for event in self._runner.run(user_id="u", session_id=f"s{self._number}", message=cases.MESSAGE):
            if event.is_final_response() and event.content is not None:
                said = event.content.parts[0].text
        return said

    async def forget(self) -> None:
        await self._sessions.delete_session("bench", "u", f"s{self._number}")
