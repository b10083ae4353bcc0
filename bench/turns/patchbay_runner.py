"""Patchbay's ``ToolRunner``: the loop and the executor alone, without sessions and agents."""

from __future__ import annotations

from bench.turns import cases
from bench.turns.patchbay_model import FakeModel
from patchbay import ToolRunner


class Row(cases.Turns):
    """Turns of a ToolRunner."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._runner = ToolRunner(FakeModel(self), tools=self.tools())

    async def turn(self) -> object:
        result = await self._runner.run(
            [{"role": "system", "content": cases.INSTRUCTION}, {"role": "user", "content": cases.MESSAGE}]
        )
        return result.content
