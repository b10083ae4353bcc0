"""google-adk, with a ``BaseLlm`` in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.features import FeatureName, override_feature_enabled
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from pydantic import PrivateAttr

from bench.turns import cases

# Off unless it is asked for; the others check what a model writes.
override_feature_enabled(FeatureName.FUNCTION_TOOL_ARG_VALIDATION, True)  # noqa: FBT003


class FakeModel(BaseLlm):
    """Asks for the calls, then answers."""

    _row: Any = PrivateAttr()

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:  # noqa: ARG002, FBT001, FBT002
        row: cases.Turns = self._row
        row.model_calls += 1
        assert len(llm_request.tools_dict) == row.case.tools
        if any(part.function_response for part in llm_request.contents[-1].parts or []):
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=cases.DONE)]))
            return
        calls = [types.FunctionCall(id=f"c{n}", name="noop", args=row.arguments(n)) for n in range(row.case.calls)]
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(function_call=call) for call in calls]))


class Row(cases.Turns):
    """Turns of an ADK agent, each in a new session."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        model = FakeModel(model="fake")
        model._row = self  # noqa: SLF001 (a private attribute of pydantic's is set after the object is made)
        agent = LlmAgent(name="bench", model=model, instruction=cases.INSTRUCTION, tools=list(self.tools()))
        self._sessions = InMemorySessionService()
        self._runner = Runner(app_name="bench", agent=agent, session_service=self._sessions)
        self._number = 0

    async def turn(self) -> object:
        self._number += 1
        here = {"user_id": "u", "session_id": f"s{self._number}"}
        await self._sessions.create_session(app_name="bench", **here)
        message = types.Content(role="user", parts=[types.Part(text=cases.MESSAGE)])
        said = None
        async for event in self._runner.run_async(**here, new_message=message):
            if event.is_final_response() and event.content and event.content.parts:
                said = event.content.parts[0].text
        return said

    async def forget(self) -> None:
        await self._sessions.delete_session(app_name="bench", user_id="u", session_id=f"s{self._number}")
