"""The floor: the bare ``openai`` client, given the two bodies of the turn by ``extra_body``; the call is carried out by hand."""

from __future__ import annotations

import json

from bench.turns import cases, client


class Row(client.Turns):
    """Turns of the bare client."""

    checks = False

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        from patchbay.tools import collect_tools

        self._client = self.client()
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
        first = await create(model=client.MODEL, messages=(), extra_body={"messages": messages, "tools": self._tools})
        said = first.choices[0].message
        call = said.tool_calls[0]
        result = await self._noop(**json.loads(call.function.arguments))
        messages += [said.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": result}]
        last = await create(model=client.MODEL, messages=(), extra_body={"messages": messages, "tools": self._tools})
        return last.choices[0].message.content
