"""Hooks that fail closed: the effect of a failing guard, and of a class returned instead of an instance."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.hooks import DenyTool, HookManager, HookTimeouts, Modify

from .turns import hook, play_turn


def guarded_manager(guard, *, policy=None, limit=60.0, **options):
    manager = HookManager(timeouts=HookTimeouts(interceptor=limit), policy=policy)
    manager.mount("guard", guard, **{"fail_closed": True, **options})
    return manager


async def for_ever(_about):
    await asyncio.Event().wait()


def breaks(_about):
    raise OSError("a secret")


async def as_a_generator(_about):
    yield DenyTool("no")


class WrongSignature:
    def before_tool(self):
        return None


FAILURES = {"it raises": (breaks, "failed"), "it takes too long": (for_ever, "timed out")}


def limit_for(answer):
    """Little time only for one that is to be out of it: on a busy machine it runs out for any other, too."""
    return 0.05 if answer is for_ever else 60.0


@pytest.mark.parametrize(("answer", "how"), FAILURES.values(), ids=FAILURES)
def test_a_guard_that_fails_has_denied_the_call(answer, how):
    turned = play_turn(guarded_manager(hook(before_tool=answer), limit=limit_for(answer)))
    assert ([f'Tool execution denied by hook: hook "guard" {how}'], []) == (turned.results, turned.ran)
    assert ["tool_denied"] == turned.codes


def test_a_method_with_the_wrong_signature_and_a_generator_have_refused_too():
    generator = type("Generator", (), {"before_tool": lambda _self, call: as_a_generator(call)})()
    for guard in (WrongSignature(), generator):
        turned = play_turn(guarded_manager(guard))
        assert ['Tool execution denied by hook: hook "guard" failed'] == turned.results


@pytest.mark.parametrize("point", ["before_llm", "after_llm"])
@pytest.mark.parametrize(
    ("answer", "how"), [(breaks, "failed"), (for_ever, "timed out"), (Modify({"content": 5, "model": 5}), "failed")]
)
def test_one_that_fails_about_a_request_or_an_answer_ends_the_turn(point, answer, how):
    turned = play_turn(guarded_manager(hook(**{point: answer}), limit=limit_for(answer)))
    final = turned.final
    assert ("abort_turn", f'hook "guard" {how}', "guard", point) == (
        final.finish_reason,
        final.aborted.reason,
        final.aborted.hook,
        final.aborted.point,
    )
    assert [] == turned.ran


@pytest.mark.parametrize(("answer", "how"), [(breaks, "failed"), (for_ever, "timed out"), (Modify({"for_llm": 5}), "failed")])
def test_one_that_fails_about_a_result_withholds_it(answer, how):
    """The result is withheld, and the model is informed that the tool ran."""
    turned = play_turn(guarded_manager(hook(after_tool=answer), limit=limit_for(answer)))
    words = f'Error: the result is withheld: hook "guard" {how}. (The tool itself had run: its effects stand.)'
    assert ([words], ["hook_failed"], [("add", 1, 2)]) == (turned.results, turned.codes, turned.ran)
    assert "done" == turned.final.content


def test_its_failure_is_in_the_record_of_the_call():
    records = []
    manager = guarded_manager(hook(before_tool=breaks))
    manager.recorders.append(records.append)
    play_turn(manager)
    assert (("guard", "before_tool", 'denied: hook "guard" failed'),) == records[0].decisions
    manager = guarded_manager(hook(after_tool=breaks))
    manager.recorders.append(records.append)
    play_turn(manager)
    assert (("guard", "after_tool", 'withheld the result: hook "guard" failed'),) == records[1].decisions


def test_hook_can_declare_itself_fail_closed():
    guard = hook(before_tool=breaks)
    guard.fail_closed = True
    assert [] == play_turn(guarded_manager(guard, fail_closed=None)).ran
    assert [("add", 1, 2)] == play_turn(guarded_manager(guard, fail_closed=False)).ran
