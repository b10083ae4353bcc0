"""Qwen through the OpenAI-compatible endpoint of Alibaba Cloud's Model Studio (DashScope).

A forced ``tool_choice`` is refused while a model thinks, and models that think refuse to answer otherwise than in a stream: both
are learnt when they happen (``patchbay.models.modes``, ``patchbay.models.openai``), for they depend on the model.
"""

from __future__ import annotations

from patchbay.models.providers.quirks import Body, Endpoint, Provider, in_turn, renamed, system_for_developer
from patchbay.schema.dialects import DIALECTS


def _parallel(body: Body) -> Body:
    """Without a word about it a model calls one tool at a time here; everywhere else it is the other way round."""
    if body.get("tools") and "parallel_tool_calls" not in body:
        return {**body, "parallel_tool_calls": True}
    return body


def _empty_content(body: Body) -> Body:
    """A message that is nothing but calls has an empty content, not none."""
    messages = [
        {**message, "content": ""} if message.get("role") == "assistant" and message.get("content") is None else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}


def _limit(body: Body) -> Body:
    return renamed(body, "max_completion_tokens", "max_tokens")


QWEN = Provider(
    name="qwen",
    other_names=("dashscope",),
    endpoints=(Endpoint("https://dashscope.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),),
    base_url_variable="DASHSCOPE_BASE_URL",
    dialect=DIALECTS["qwen"],
    hosts=(
        "dashscope.aliyuncs.com",
        "dashscope-intl.aliyuncs.com",
        "dashscope-us.aliyuncs.com",
        "cn-hongkong.dashscope.aliyuncs.com",
    ),
    sent_back=frozenset({"reasoning_content"}),
    prepare=in_turn(system_for_developer, _empty_content, _parallel, _limit),
)
