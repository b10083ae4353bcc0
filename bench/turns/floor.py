"""The floor: a loop written by hand, dicts and ``asyncio.gather``. No validation, no events, no session."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.turns import cases


class Row(cases.Turns):
    """Turns of the loop by hand."""

    checks = False

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._tools = {tool.__name__: tool for tool in self.tools()}

    async def turn(self) -> object:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": cases.INSTRUCTION},
            {"role": "user", "content": cases.MESSAGE},
        ]
        while True:
            reply = await self._ask(messages)
            messages.append({"role": "assistant", **reply})
            if not reply["calls"]:
                return reply["text"]
            running = [self._tools[call["name"]](**call["arguments"]) for call in reply["calls"]]
            results = await asyncio.gather(*running, return_exceptions=True)
            for call, result in zip(reply["calls"], results, strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    async def _ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        self.model_calls += 1
        if messages[-1]["role"] == "tool":
            return {"text": cases.DONE, "calls": []}
        numbers = range(self.case.calls)
        return {"text": None, "calls": [{"id": f"c{n}", "name": "noop", "arguments": self.arguments(n)} for n in numbers]}
