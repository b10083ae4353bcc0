"""Which errors name something that was sent and could be left out, and which only seem to."""

from __future__ import annotations

from typing import Any

import pytest

from patchbay.errors import UpstreamError
from patchbay.models.capabilities import Capabilities
from patchbay.models.refusals import complained_of, demands_stream

BODY: dict[str, Any] = {
    "model": "m",
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {}}],
        },
    ],
}


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("Unrecognized request argument supplied: stream_options", {"stream_options"}),
        ("messages.1.reasoning: Extra inputs are not permitted", {"reasoning"}),
        ("property 'reasoning' is unsupported", {"reasoning"}),
        ("messages[1].tool_calls[0].extra_content is not known", {"extra_content"}),
        ("This reasoning model takes no images", set()),
        ("reasoning_content must be a string", set()),  # it was not sent
        ("max_tokens is too large", set()),
    ],
)
def test_fields_named_in_an_error_are_found(message: str, named: set[str]) -> None:
    assert named == complained_of(UpstreamError("Bad request", upstream_status=400, body=message), BODY)
    assert set() == complained_of(UpstreamError(message, upstream_status=500), BODY)


@pytest.mark.parametrize(
    "message",
    [
        "parameter.enable_thinking must be set to false for non-streaming calls",
        "This model only support stream mode, please enable the stream parameter to access the model.",
        "enable thinking can not be support when `stream=False`.",
    ],
)
def test_a_model_that_answers_in_a_stream_only_is_understood(message: str) -> None:
    assert demands_stream(400, message)
    assert not demands_stream(503, message)


def test_capabilities_are_bounded_and_the_oldest_evicted() -> None:
    capabilities = Capabilities()
    first = capabilities.of("first")
    assert first is capabilities.of("first")
    for number in range(2000):
        capabilities.of(number)
    assert first is not capabilities.of("first")
    assert capabilities.of(1999) is capabilities.of(1999)
