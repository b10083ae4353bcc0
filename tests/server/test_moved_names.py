"""Old module paths of documented names work for one more release, with a warning that says the new name."""

from __future__ import annotations

from importlib import import_module

import pytest

import patchbay.server


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("oversight", "Oversight", "Governance"),
        ("media", "MediaDoor", "MediaApp"),
        ("tools", "create_tools_app", "create_tools_app"),
        ("tools.chat.settings", "ChatSettings", "ChatSettings"),
    ],
)
def test_an_old_name_is_the_new_one_and_warns(module: str, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"patchbay\.server\.{new} now"):
        found = getattr(import_module(f"patchbay.server.{module}"), old)
    assert getattr(patchbay.server, new) is found


def test_an_unknown_name_of_an_old_module_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        import_module("patchbay.server.oversight").no_such_name  # noqa: B018  (the access is the test)
