"""The callbacks around an agent's model, as links of the chain of hooks.

What lives here: how they are asked, and what becomes of what they answer. What does not: the chain (``patchbay.hooks``), what
they are shown (``request``), and the model's time (``asking``). Calls that a callback returns are carried out as the model's own
are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from patchbay.agents import topics
from patchbay.agents.callbacks import ask
from patchbay.agents.config import GenerateContentConfig
from patchbay.agents.context import InvocationContext
from patchbay.agents.failures import NoAnswerError, callbacks_fail
from patchbay.agents.request import (
    LlmResponse,
    as_llm_request,
    as_llm_response,
    as_model_reply,
    as_response,
    changed,
)
from patchbay.errors import ConfigurationError
from patchbay.loop.hooked import AskedReply, AskedRequest
from patchbay.models.chat import ModelReply
from patchbay.tools import collect_tools

if TYPE_CHECKING:
    from patchbay.agents.llm_agent import LlmAgent
    from patchbay.hooks import RegisteredHook


def model_links(agent: LlmAgent) -> tuple[RegisteredHook, ...]:
    """Return the callbacks around an agent's model as links; the callbacks are those that it has when it is asked."""
    points: dict[str, Any] = {}
    if agent.before_model_callback:
        points["before_llm"] = partial(_before, agent)
    if agent.after_model_callback:
        points["after_llm"] = partial(_after, agent)
    if not points:
        return ()
    from patchbay.hooks import native

    return (native("callbacks of the model", **points),)


async def _before(agent: LlmAgent, asked: AskedRequest) -> ModelReply | None:
    """Ask what is to be asked; return the answer if it has been given. Raises NoAnswerError."""
    ctx: InvocationContext = asked.run.surroundings.invocation_context
    run, request = asked.run, asked.request
    try:
        name = getattr(agent.chat_model(), "name", None)
    except ConfigurationError:  # it is no use, and may not be asked
        name = agent.model_name or None
    with callbacks_fail():
        shown = as_llm_request(
            request,
            config=agent.generate_content_config or GenerateContentConfig(),
            tools=run.tools,
            model=name,
            metadata={"user_id": ctx.user_id},
        )
        answer = await ask(agent.before_model_callback, ctx, shown)
        before = run.tools
        run.lend(collect_tools(shown.tools_dict.values()))
        if answer is not None:
            return as_model_reply(await _checked(ctx, as_response(answer)))
        request = changed(request, shown, model=name)
        if run.tools is not before:
            request = replace(request, tools=run.specs, tool_choice=asked.tool_choice if run.specs else None)
        asked.request = request
    return None


async def _after(agent: LlmAgent, asked: AskedReply) -> None:
    """Ask about the answer, and put another one in its place if there is one. Raises NoAnswerError."""
    ctx: InvocationContext = asked.run.surroundings.invocation_context
    end = asked.end
    with callbacks_fail():
        response = as_llm_response(end)
        answer = await ask(agent.after_model_callback, ctx, response)
        if answer is None and response == as_llm_response(end):
            return
        # It may also have changed what it was given.
        answer = response if answer is None else as_response(answer)
        asked.end = as_model_reply(await _checked(ctx, answer), instead_of=end)


async def _checked(ctx: InvocationContext, response: LlmResponse) -> LlmResponse:
    if response.error_code is not None:
        failure = NoAnswerError(response.error_code, response.error_message or "")
        await ctx.publish(topics.LLM_ERROR, {"error": failure.code, "message": str(failure)})
        raise failure
    return response
