"""GLM by Zhipu AI (bigmodel.cn) and Z.ai, its name elsewhere: the same models and API, with a key of each."""

from __future__ import annotations

from patchbay.models.providers.quirks import Body, Endpoint, Provider, in_turn, renamed, system_for_developer
from patchbay.schema.dialects import DIALECTS


def _limit(body: Body) -> Body:
    return renamed(body, "max_completion_tokens", "max_tokens")


GLM = Provider(
    name="glm",
    other_names=("zhipu", "zai"),
    endpoints=(
        Endpoint("https://open.bigmodel.cn/api/paas/v4/", "ZHIPUAI_API_KEY"),
        Endpoint("https://api.z.ai/api/paas/v4/", "ZAI_API_KEY"),
    ),
    base_url_variable="ZHIPUAI_BASE_URL",
    dialect=DIALECTS["glm"],
    hosts=("open.bigmodel.cn", "api.z.ai"),
    # Its thinking models reason between calls, and go on from the reasoning that they are sent back.
    sent_back=frozenset({"reasoning_content"}),
    prepare=in_turn(system_for_developer, _limit),
    finish_reasons={
        "sensitive": "content_filter",
        "model_context_window_exceeded": "length",
        "network_error": "error",
    },
)
