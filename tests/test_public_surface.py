"""The public surface is a promise: a name is added or taken away on purpose, here and in CHANGELOG.md."""

from __future__ import annotations

import pytest

import patchbay

FROZEN = [
    "Attachment",
    "InvalidRequestError",
    "MaxIterationsError",
    "PatchbayError",
    "Reply",
    "ResponseFormatError",
    "StreamParser",
    "ToolArgumentsError",
    "ToolCall",
    "ToolChoiceError",
    "ToolContext",
    "ToolFailed",
    "ToolResult",
    "ToolRetry",
    "ToolRunner",
    "ToolSearch",
    "ToolSpec",
    "ToolValidator",
    "UnknownToolError",
    "UpstreamError",
    "Usage",
    "extract_fenced_blocks",
    "extract_reasoning",
    "flatten_messages",
    "load_format",
    "parse",
    "parse_json",
    "render_contract",
    "render_tool_choice",
    "resolve_model",
    "tool",
    "wrap",
]


def test_the_public_names_are_exactly_these():
    assert FROZEN == sorted(patchbay.__all__)


def test_the_surface_stays_small_enough_to_remember():
    assert len(patchbay.__all__) <= 40


def test_every_public_name_resolves_to_one_object_with_a_docstring():
    for name in patchbay.__all__:
        value = getattr(patchbay, name)
        assert value is getattr(patchbay, name)
        assert value.__doc__, f"{name} has no docstring"


def test_dir_lists_every_public_name_before_it_is_used():
    assert set(patchbay.__all__) <= set(dir(patchbay))


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="no_such_name"):
        patchbay.no_such_name  # noqa: B018  (the access is the test)
