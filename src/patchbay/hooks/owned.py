"""A tool that a hook has added to a turn: its calls are answered by that hook."""

from __future__ import annotations

from typing import Any

from patchbay.errors import HookAbortError, HookFailedError, PatchbayError, ToolError
from patchbay.hooks.asked import Asked
from patchbay.hooks.bounded import BrokenHookError, HookTimeoutError
from patchbay.hooks.injection import Injection
from patchbay.hooks.results import NoOutputError
from patchbay.hooks.scope import HookScope
from patchbay.hooks.turn import TurnHooks
from patchbay.tools import Tool, ToolContext, Validation
from patchbay.tools.results import describe
from patchbay.types import ToolCall


class OwnedTool(Tool):
    """The tool of an Injection in one turn. ``owner`` is the hook's name, ``source`` ``hook:`` and that name."""

    def __init__(self, injection: Injection, turn: TurnHooks) -> None:
        spec = injection.spec
        super().__init__(spec.name, spec.description, parameters=spec.parameters, strict=spec.strict is True)
        self.owner = injection.owner.name
        self.source = f"hook:{self.owner}"
        self._injection = injection
        self._turn = turn

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Ask the hook. Raises HookFailedError where it does not answer: the call is never taken for one of an unknown tool."""
        try:
            return await self._turn.own_response(self._injection.owner, _OwnCall(self._turn, self, arguments, context))
        except (ToolError, HookAbortError):
            raise
        except HookTimeoutError as error:
            limit = f"{error.limit * 1000:g} ms"
            words = f"plugin tool timed out after {limit}"
            why = f"no answer within {limit} (its tool_timeout_ms, or that of all interceptors)"
        except (PatchbayError, BrokenHookError, NoOutputError) as error:
            why = str(error)
            words = f"the tool failed: {why}"
        except Exception as error:  # noqa: BLE001  (whatever the hook did, its tool has failed)
            why = describe(error)
            words = f"the tool failed: {why}"
        self._injection.owner.complain("has not answered a call of its tool %r: %s", self.name, why, kind=self.name)
        raise HookFailedError(words, tool_name=self.name)

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:
        """Check against the schema, also where the arguments of other tools are not checked: the hook may count on it."""
        return super().validate(raw_arguments, validation if validation is not None else Validation())


class _OwnCall(Asked):
    """A call of a hook's own tool, as that hook is asked about it."""

    __slots__ = ("_turn",)

    def __init__(self, turn: TurnHooks, tool: Tool, arguments: dict[str, Any], context: ToolContext) -> None:
        self._turn = turn
        self.call = ToolCall(context.call_id, tool.name, context.raw_arguments)
        self.tool = tool
        self.arguments = arguments
        self.context = context
        self.trail = None
        self._plain = None

    @property
    def scope(self) -> HookScope:
        return self._turn.scope

    @property
    def iteration(self) -> int:
        return self.context.iteration if self.context is not None else 0
