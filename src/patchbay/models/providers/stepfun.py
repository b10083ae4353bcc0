"""StepFun: OpenAI's API, with the reasoning in a field of its own name unless the request asks for DeepSeek's."""

from __future__ import annotations

from dataclasses import replace

from patchbay.models.providers.quirks import Body, Endpoint, Provider, in_turn, renamed, system_for_developer
from patchbay.schema.dialects import DIALECTS, NameRule


def _limit(body: Body) -> Body:
    return renamed(body, "max_completion_tokens", "max_tokens")


STEPFUN = Provider(
    name="stepfun",
    other_names=("step",),
    endpoints=(
        Endpoint("https://api.stepfun.com/v1", "STEPFUN_API_KEY"),
        Endpoint("https://api.stepfun.com/v1", "STEP_API_KEY"),
    ),
    base_url_variable="STEPFUN_BASE_URL",
    hosts=("api.stepfun.com", "api.stepfun.ai"),
    # Here a name may not begin with a digit or a dash.
    dialect=replace(DIALECTS["stepfun"], names=NameRule(r"[A-Za-z_][A-Za-z0-9_-]*")),
    sent_back=frozenset({"reasoning", "reasoning_content"}),
    prepare=in_turn(system_for_developer, _limit),
)
