"""The decorators of plugins, what they refuse, and ``Ok`` and ``Err``."""

from __future__ import annotations

import functools
import math

import pytest

import patchbay.plugins
from patchbay.plugins import (
    EntryConflictError,
    Err,
    NekoPluginBase,
    Ok,
    PluginBase,
    PluginError,
    lifecycle,
    llm_tool,
    neko_plugin,
    plugin,
    unwrap,
    unwrap_or,
)
from patchbay.plugins.sdk import hooks_of
from patchbay.plugins.tool_table import tools_of


@pytest.mark.parametrize("name", ["a", "get_weather", "a.b-c_9", "x" * 64, "-", "."])
def test_names_allow_letters_digits_dots_underscores_and_hyphens(name):
    @llm_tool(name=name)
    def method(self): ...

    class Plugin(NekoPluginBase):
        tool = method

    assert [name] == [meta.name for _, meta in tools_of(Plugin)]


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a/b", "天气", "a\n", "a%20", "é", "a:b"])
def test_any_other_name_is_a_value_error_when_the_method_is_marked(name):
    with pytest.raises(ValueError, match="name must be"):
        llm_tool(name=name)(lambda self: None)


def test_plugin_tool_annotations_are_translated():
    @llm_tool(name="a", annotations={"destructiveHint": True, "read_only": False, "paid": True})
    def method(self): ...

    class Plugin(NekoPluginBase):
        tool = method

    [(_, meta)] = tools_of(Plugin)
    assert {"destructive": True, "read_only": False, "paid": True} == meta.annotations


@pytest.mark.parametrize("message", [["destructive"], {"destructive": "yes"}, {"destructive": 1}, {"": True}, {"x" * 65: True}])
def test_non_boolean_annotations_are_a_value_error_at_decoration(message):
    with pytest.raises(ValueError, match="Tool 'a': "):
        llm_tool(name="a", annotations=message)(lambda self: None)


def test_the_methods_own_name_must_fit_too():
    def method(self): ...

    method.__name__ = "wetter_für_morgen"
    with pytest.raises(ValueError, match="wetter_für_morgen"):
        llm_tool(method)


@pytest.mark.parametrize(
    "options",
    [
        {"name": 5},
        {"parameters": [("type", "object")]},
        {"parameters": {...}},
        {"parameters": "{}"},
        {"description": None},
        {"timeout": "30"},
        {"timeout": None},
        {"timeout": True},
        {"role": 7},
    ],
)
def test_options_of_a_wrong_type_are_type_errors(options):
    with pytest.raises(TypeError):
        llm_tool(**{"name": "ok", **options})(lambda self: None)


@pytest.mark.parametrize("timeout", [0, -1, 300.1, math.nan, math.inf, -math.inf])
def test_unenforceable_timeout_is_a_value_error(timeout):
    with pytest.raises(ValueError, match="at most 300 seconds"):
        llm_tool(timeout=timeout)(neko_plugin)


@pytest.mark.parametrize("thing", [5, object, functools.partial(print), property(print)])
def test_only_methods_can_be_marked(thing):
    for mark in (llm_tool(name="x"), lifecycle(id="startup")):
        with pytest.raises(TypeError, match="marks methods"):
            mark(thing)
    with pytest.raises(TypeError, match="marks classes"):
        neko_plugin(lambda: None)


@pytest.mark.parametrize("id_", ["start", "", "STARTUP", None])
def test_another_lifecycle_id_is_a_value_error(id_):
    with pytest.raises(ValueError, match="startup, shutdown, reload, freeze, unfreeze, config_change"):
        lifecycle(id=id_)


def test_a_marked_method_stays_the_method_it_was():
    class Plugin(NekoPluginBase):
        def __init__(self): ...

        @llm_tool(name="other")
        def double(self, n: int) -> int:
            return 2 * n

    assert 6 == Plugin().double(3)


def test_tools_are_found_by_method_name_with_inheritance_and_overrides():
    class Base(NekoPluginBase):
        @llm_tool
        def zebra(self): ...

        @llm_tool
        def gone(self): ...

        @property
        def trap(self):
            raise AssertionError("a property was run")

    class Plugin(Base):
        @llm_tool(name="first_by_name")
        async def middle(self): ...

        @llm_tool
        @staticmethod
        def alone(): ...

        def gone(self): ...

    assert ["alone", "middle", "zebra"] == [method for method, _ in tools_of(Plugin)]


def test_hooks_are_found_by_mark_and_by_the_names_that_the_seeds_use():
    class Marked(NekoPluginBase):
        @lifecycle(id="startup")
        def begin(self): ...

        def on_start(self): ...

        def on_shutdown(self): ...

    assert {"startup": "begin", "shutdown": "on_shutdown"} == hooks_of(Marked)


def test_two_hooks_of_one_id_are_refused():
    class Plugin(NekoPluginBase):
        @lifecycle(id="freeze")
        def one(self): ...

        @lifecycle(id="freeze")
        def two(self): ...

    with pytest.raises(EntryConflictError, match="lifecycle hook 'freeze'"):
        hooks_of(Plugin)


def test_the_plain_names_are_the_seeds_own():
    assert plugin is neko_plugin
    assert PluginBase is NekoPluginBase


def test_unwrap_returns_the_value_or_raises_the_error():
    assert 5 == unwrap(Ok(5))
    assert 5 == unwrap_or(Ok(5), 6)
    assert 6 == unwrap_or(Err("no"), 6)
    with pytest.raises(KeyError):
        unwrap(Err(KeyError("x")))
    with pytest.raises(PluginError, match="no"):
        unwrap(Err("no"))
    with pytest.raises(TypeError):
        unwrap(5)


def test_ok_and_err_compare_by_value():
    assert Ok([1]) == Ok([1])
    assert Ok(1) != Err(1)


def test_every_public_name_resolves_and_has_a_docstring():
    for name in patchbay.plugins.__all__:
        assert name == "Result" or getattr(patchbay.plugins, name).__doc__  # a union has none
    with pytest.raises(AttributeError, match="no_such"):
        patchbay.plugins.no_such  # noqa: B018  (the access is the test)
