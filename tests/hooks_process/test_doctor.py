"""``patchbay hooks``: what a configuration has, and what is wrong with a hook."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hooks_process.peers import BOUND, process_exists, script, wait_until
from patchbay.hooks.process import ProcessLimits, ProcessSpec
from patchbay.hooks.process.doctor import examine
from support.cli import run_cli
from support.processes import Process
from support.running import run
from support.tables import rows

WEATHER = Path(__file__).parents[2] / "examples" / "hooks" / "weather.py"


def patchbay(*arguments):
    return run_cli("hooks", *map(str, arguments))


def verdicts(command, modes=None, timeout=20.0, hello=20.0):
    """Return what the doctor finds, by check. Only where silence is the subject it is less patient."""
    spec = ProcessSpec(name="h", command=command, limits=ProcessLimits(hello=hello))
    found = run(examine(spec, modes=modes and frozenset(modes), timeout=timeout))
    assert len(found) == len({each.check for each in found})
    return {each.check: each for each in found}


def not_ok(found):
    return {check: each.outcome for check, each in found.items() if each.outcome != "ok"}


def test_the_example_passes():
    found = verdicts((sys.executable, str(WEATHER)))
    assert {} == not_ok(found)
    assert "offers 1 tool" == found["hook.hello"].words
    assert found["hook.approve_tool"].words.startswith("not for this hook")


KNOWS_ALL = """
def on(method, params):
    if method in ("before_llm", "after_llm", "before_tool", "after_tool", "approve_tool"):
        answer({"approved": True} if method == "approve_tool" else {})
    elif id:
        answer(error={"code": -32601, "message": "?"})
"""


def test_correct_hook_passes_at_all_its_points(tmp_path):
    assert {} == not_ok(verdicts(script(tmp_path, KNOWS_ALL)))


def test_only_the_points_of_a_hook_are_checked(tmp_path):
    found = verdicts(script(tmp_path, KNOWS_ALL), modes={"approve"})
    expected = ["hook.hello", "hook.approve_tool", "unknown method", "hook.runtime_event", "end of standard input"]
    assert [*expected, "standard output"] == list(found)


@pytest.mark.parametrize(("outcome", "body", "check", "words"), rows(__file__, "doctor.jsonl"))
def test_defect_has_a_verdict_with_a_way_out(tmp_path, outcome, body, check, words):
    modes = None if " and " in check else {"llm", "tool"}
    verdict = verdicts(script(tmp_path, body), modes=modes)[check]
    assert (outcome, True, outcome != "ok") == (verdict.outcome, words in verdict.words, bool(verdict.way_out))


def test_tools_without_before_tool_are_a_failure(tmp_path):
    found = verdicts(
        script(tmp_path, "def hello(params): answer({'tools': [{'type': 'function', 'function': {'name': 'x'}}]})"), modes={"llm"}
    )["hook.hello"]
    assert ("failure", True) == (found.outcome, "before_tool" in found.way_out)


@pytest.mark.parametrize(
    ("body", "words", "way_out"),
    [
        (
            "write(json.dumps({'id': str(id), 'result': {}}) + '\\n')",
            "the id is a string instead of a whole number",
            "An answer is",
        ),
        ("write('ready\\n')", "it printed ready", "An answer is"),
        ("pass", "no answer to hook.approve_tool within 1 s", "flush standard output"),
    ],
)
def test_what_came_in_the_place_of_an_answer_is_printed(tmp_path, body, words, way_out):
    verdict = verdicts(script(tmp_path, f"def on(method, params): {body}"), modes={"approve"}, timeout=1.0)["hook.approve_tool"]
    assert ("failure", True, True) == (verdict.outcome, words in verdict.words, way_out in verdict.way_out)


@pytest.mark.parametrize(
    ("command", "way_out"),
    [
        (("/no/such/program",), "name the interpreter"),
        ((sys.executable, "-c", ""), "Read requests from standard input until it ends"),
        ((sys.executable, "-c", "raise SystemExit('why')"), "Run the command by hand"),
    ],
)
def test_a_process_without_a_hello_gets_a_way_out(command, way_out):
    (hello,) = verdicts(command).values()
    assert ("failure", True) == (hello.outcome, way_out in hello.way_out)


def test_doctor_detects_missing_flush_even_with_pythonunbuffered(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    source = (
        "import json, sys\n"
        "for line in sys.stdin.buffer:\n"
        "    print(json.dumps({'id': json.loads(line).get('id'), 'result': {}}))\n"
    )
    path = tmp_path / "unflushed.py"
    path.write_text(source)
    (hello,) = verdicts((sys.executable, str(path)), modes={"approve"}, timeout=1.0, hello=1.0).values()
    assert ("failure", True) == (hello.outcome, "flush" in hello.way_out)


def test_a_hook_that_writes_text_fails_in_a_locale_that_is_not_utf8(tmp_path):
    body = """
    def on(method, params):
        text = json.dumps({"id": id, "result": {"action": "abort_turn", "reason": str(params)}}, ensure_ascii=False)
        print(text, flush=True)
    """
    isolated = script(tmp_path, body)
    found = verdicts((isolated[0], isolated[-1]), modes={"llm"})["hook.before_llm"]
    assert ("failure", True) == (found.outcome, "UTF-8" in found.way_out)


def test_hook_output_is_escaped_on_the_terminal(tmp_path):
    done = patchbay("doctor", *script(tmp_path, "def hello(params): write('\\x1b]0;mine\\x07\\n'); sys.exit('\\x1b[2J')"))
    assert ("\x1b" in done.stdout, "\\x1b[2J" in done.stdout) == (False, True)


def test_first_answer_is_limited_by_the_configured_timeout(tmp_path):
    body = """
    def hello(params):
        time.sleep(0.3)
        globals()["hello"] = lambda params: answer()
        answer()
    """
    found = verdicts(script(tmp_path, body), modes={"approve"}, timeout=0.2)
    assert ("ok", "ok") == (found["hook.hello"].outcome, found["hook.runtime_event"].outcome)


def test_the_command_prints_verdicts_and_exits_with_1_where_something_is_wrong(tmp_path):
    done = patchbay("doctor", *script(tmp_path, 'def on(method, params): answer({"action": 1})'))
    assert 1 == done.returncode
    assert "failure  hook.before_tool" in done.stdout
    assert '         -> Which actions and members each answer has: docs/guides/hook-processes.md, "The wire".' in done.stdout
    assert patchbay("doctor", "/no/such/program").stdout.endswith("1 check: 0 ok, 0 warning, 1 failure\n")


def test_doctor_takes_a_configured_hook_prints_json_and_refuses_wrong_arguments(tmp_path):
    config = tmp_path / "patchbay.toml"
    config.write_text(
        f"[hooks.processes.weather]\nenabled = true\ncommand = ['{sys.executable}', '{WEATHER}']\nintercept = ['before_tool']\n"
    )
    done = patchbay("doctor", "--json", "--config", config, "weather")
    outcome = json.loads(done.stdout)
    assert (0, 0, 0, False) == (done.returncode, outcome["failure"], outcome["warning"], outcome["failed"])
    assert outcome["ok"] == len(outcome["verdicts"])
    for arguments, error in (
        (["doctor", "--config", config, "wether"], "no enabled process hook is named 'wether'; available: weather."),
        (["doctor", "--config", config, "weather", "--strict"], "--strict must come before the hook's name 'weather'."),
        (["list"], "--config FILE is missing."),
    ):
        refused = patchbay(*arguments)
        assert (2, f"patchbay: {error}\n") == (refused.returncode, refused.stderr)


def test_with_strict_a_warning_is_a_failure_and_after_the_command_it_is_passed_to_the_hook_with_a_note(tmp_path):
    command = script(tmp_path, "def on(method, params): answer() if id else None")
    note = "patchbay: --strict, --json is passed to the hook: options of doctor come before the command.\n"
    for arguments, outcome in (
        (command, (0, "")),
        (("--strict", *command), (1, "")),
        ((*command, "--strict", "--json"), (0, note)),
    ):
        done = patchbay("doctor", *arguments)
        assert outcome == (done.returncode, done.stderr)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_the_hook(tmp_path, number, status):
    marker = tmp_path / "pid"
    command = script(tmp_path, f"def hello(params): open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    pipe = subprocess.PIPE
    arguments = [sys.executable, "-m", "patchbay", "hooks", "doctor", "--timeout", "60", *command]
    with Process(arguments, stdout=pipe, stderr=pipe) as doctor:
        try:
            run(wait_until(lambda: marker.exists() and marker.read_text()))
            doctor.send_signal(number)
            out, _ = doctor.communicate(timeout=BOUND)
        finally:
            doctor.kill()
    assert (status, b"") == (doctor.returncode, out)
    assert not process_exists(int(marker.read_text()))


def test_list_prints_hooks_in_call_order(tmp_path):
    config = tmp_path / "patchbay.yaml"
    config.write_text(
        """
        hooks:
          colour: blue
          builtins:
            audit: {enabled: true, required: false}
          processes:
            weather: {enabled: true, command: [python3, "my weather.py"], intercept: [before_llm, before_tool], priority: 100}
            gate: {enabled: true, command: [gate], intercept: [approve_tool], observe: ["*"]}
            later: {enabled: false}
        """
    )
    done = patchbay("list", "--config", config)
    expected = """\
audit    builtin  priority 0
gate     process  priority 0, required; observe, approve
         gate
weather  process  priority 100; llm, tool
         python3 'my weather.py'
later    disabled
"""
    assert (0, expected) == (done.returncode, done.stdout)
    assert "patchbay: hooks.colour is not known, and is passed over\n" == done.stderr
    outcome = json.loads(patchbay("list", "--json", "--config", config).stdout)
    assert ["audit", "gate", "weather", "later"] == [row["name"] for row in outcome]
    assert ["observe", "approve"] == outcome[1]["modes"]


@pytest.mark.parametrize(
    ("text", "printed"), [('{"agents": {}}', "has no hooks\n"), ('{"hooks": {"enabled": false}}', "no hook runs\n")]
)
def test_list_reports_a_file_without_hooks_and_disabled_hooks(tmp_path, text, printed):
    config = tmp_path / "patchbay.json"
    config.write_text(text)
    done = patchbay("list", "--config", config)
    assert (True, "") == (done.stdout.endswith(printed), done.stderr)
