"""``patchbay hooks``: what a configuration has, and what is wrong with a hook."""

from __future__ import annotations

import asyncio
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
from support.running import run

WEATHER = Path(__file__).parents[2] / "examples" / "hooks" / "weather.py"


def patchbay(*arguments):
    return run_cli("hooks", *map(str, arguments))


async def examined(command, modes=None, timeout=20.0, hello=20.0):
    """Return what the doctor says, by the names of the checks. Only where silence is what is looked at is it less patient."""
    each = ProcessSpec(name="h", command=command, limits=ProcessLimits(hello=hello))
    found = await examine(each, modes=modes and frozenset(modes), timeout=timeout)
    assert len(found) == len({each.check for each in found})
    return {each.check: each for each in found}


def verdicts(command, **options):
    return run(examined(command, **options))


def outcomes(found, *, other_than="ok"):
    return {check: each.outcome for check, each in found.items() if each.outcome != other_than}


def test_the_example_passes():
    found = verdicts((sys.executable, str(WEATHER)))
    assert {} == outcomes(found)
    assert "offers 1 tool" == found["hook.hello"].words
    assert found["hook.approve_tool"].words.startswith("not for this hook")


def test_correct_hook_passes_at_all_its_points(tmp_path):
    body = """
    def lines():
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line)
                if isinstance(message["params"], dict) and message.get("id"):
                    yield message
            except (ValueError, KeyError, TypeError):
                pass

    def on(method, params):
        if method in ("before_llm", "after_llm", "before_tool", "after_tool", "approve_tool"):
            answer({"approved": True} if method == "approve_tool" else {})
        else:
            write(json.dumps({"id": id, "error": {"code": -32601, "message": "?"}}) + "\\n")
    """
    assert {} == outcomes(verdicts(script(tmp_path, body)))


FAILURES = [
    ('def on(method, params): answer({"action": 1})', "hook.before_tool", "action must be a string"),
    ('def on(method, params): answer({"decision": "deny"})', "hook.before_tool", "'action' is meant"),
    ('def on(method, params): answer({"action": "deny"})', "hook.before_tool", "the action 'deny' is not known there"),
    ("def on(method, params): os._exit(3)", "hook.before_tool", "exit status 3"),
    ("def on(method, params): sys.exit('no idea')", "hook.before_tool", "exit status 1 (no idea)"),
    ("def on(method, params): print('debugging', flush=True); answer()", "standard output", "the first: debugging"),
    ("def hello(params): sys.exit('no config')", "hook.hello", "exit status 1 (no config)"),
    ("def hello(params): answer([])", "hook.hello", "the result is a list"),
]
WARNINGS = [
    ('def on(method, params): answer({"action": "respond", "result": {}})', "hook.before_tool", "not its own"),
    (
        'def on(method, params): answer({"action": "modify", "result": {"for_llm": "x"}})',
        "hook.after_tool",
        "and taken",
    ),
    ('def on(method, params): answer({"vendor": 1})', "hook.before_tool", "'vendor' is not known"),
    ("", "unknown method", "as if it knew"),
    ("def on(method, params): answer(); answer()", "hook.runtime_event", "no id"),
    (
        "def lines():\n    yield from map(json.loads, sys.stdin.buffer)\n    time.sleep(60)",
        "end of standard input",
        "but on SIGTERM",
    ),
]


@pytest.mark.parametrize(
    ("outcome", "body", "check", "words"), [*(("failure", *row) for row in FAILURES), *(("warning", *row) for row in WARNINGS)]
)
def test_defect_has_a_verdict_with_a_way_out(tmp_path, outcome, body, check, words):
    verdict = verdicts(script(tmp_path, body), modes={"tool"})[check]
    assert outcome == verdict.outcome
    assert words in verdict.words
    assert verdict.way_out


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ({"content": "No.", "finish_reason": "stop"}, "takes the calls out of the answer: the turn ends with its content"),
        ({"content": "No.", "tool_calls": []}, "takes the calls out of the answer: the turn ends with its content"),
        ({"content": "No."}, "changes content: the calls stay, and are carried out"),
        (
            {"content": "No.", "finish_reason": "tool_calls"},
            "changes content: the calls stay, and are carried out",
        ),
    ],
)
def test_outcome_of_calls_in_a_changed_response_is_reported(tmp_path, response, words):
    body = f"def on(method, params): answer({{'response': {{'response': {response!r}}}}} if method == 'after_llm' else {{}})"
    verdict = verdicts(script(tmp_path, body), modes={"llm"})["hook.after_llm"]
    assert ("ok", words) == (verdict.outcome, verdict.words)


HELLO = "def hello(params): answer({'tools': [%s]})"
BEFORE_LLM = "def on(method, params): answer({'action':'modify','request':{'tools':params.get('tools',[])+[%s]}} if method=='before_llm' else {})"
FLAT = "{'name': 'x', 'parameters': {}}"
BAD_SCHEMA = "{'type': 'function', 'function': {'name': 'x', 'parameters': {'type': 'objekt'}}}"
GOOD = "{'type': 'function', 'function': {'name': 'x'}}"


@pytest.mark.parametrize("tool", [FLAT, BAD_SCHEMA, "1"])
def test_an_invalid_tool_is_a_failure_wherever_it_is_offered(tmp_path, tool):
    modes = {"llm", "tool"}
    hello = verdicts(script(tmp_path, HELLO % tool), modes=modes)["hook.hello"]
    assert ("failure", True) == (hello.outcome, "it offers an invalid tool: " in hello.words)
    if tool != "1":  # there it is a wrong type
        asked = verdicts(script(tmp_path, BEFORE_LLM % tool), modes=modes)["hook.before_llm"]
        assert ("failure", True) == (asked.outcome, "it offers an invalid tool: " in asked.words)
    assert '{"type":"function","function":{"name":' in hello.way_out


def test_tools_without_before_tool_are_a_failure(tmp_path):
    found = verdicts(script(tmp_path, HELLO % GOOD), modes={"llm"})["hook.hello"]
    assert ("failure", "it offers tools that it is not asked for") == (found.outcome, found.words)
    assert "before_tool" in found.way_out


A_REPLY = '{"jsonrpc":"2.0","id":1,"result":{}}'
IN_THE_PLACE_OF_AN_ANSWER = {
    "write(json.dumps({'id': str(id), 'result': {}}) + '\\n')": ("the id is a string instead of a whole number", A_REPLY),
    "write(json.dumps({'id': id, 'result': {}}, indent=1) + '\\n')": ("a line that is not a reply", A_REPLY),
    "write('ready\\n')": ("it printed ready", A_REPLY),
    "write('{\"result\":{}}\\n')": (
        'it printed a line that is not a reply: it has no id of a request: {"result":{}}',
        "its id the whole number of the request",
    ),
}


async def test_replacement_of_an_answer_is_printed(tmp_path):
    """All at a time, since each waits until the time for an answer is up."""
    bodies = [f"def {name}: {answer}" for answer in IN_THE_PLACE_OF_AN_ANSWER for name in ("hello(params)", "on(method, params)")]
    found = await asyncio.gather(
        *(
            examined(script(tmp_path, body, name=f"hook{number}"), modes={"approve"}, timeout=2.0, hello=4.0)
            for number, body in enumerate(bodies)
        )
    )
    for (printed, way_out), hello, later in zip(IN_THE_PLACE_OF_AN_ANSWER.values(), found[::2], found[1::2], strict=True):
        assert ["hook.hello"] == [*hello]
        for verdict in (hello["hook.hello"], later["hook.approve_tool"]):
            assert printed in verdict.words
            assert way_out in verdict.way_out


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
    found = verdicts((sys.executable, str(path)), modes={"approve"}, timeout=4.0, hello=4.0)
    assert "ok" == found["hook.approve_tool"].outcome
    assert ("failure", True) == (
        found["C locale, buffered output"].outcome,
        "flush" in found["C locale, buffered output"].way_out,
    )


def test_silence_is_a_failure(tmp_path):
    body = (
        "def on(method, params):\n    if params.get('duration') != 1_500_000 or len(params['result']['for_llm']) > 99: answer()"
    )
    found = verdicts(script(tmp_path, body), modes={"tool"}, timeout=3.0)
    assert "no answer to hook.after_tool within 3 s" == found["hook.after_tool"].words
    assert "ok" == found["hook.before_tool"].outcome


def test_hook_output_is_escaped_on_the_terminal(tmp_path):
    done = patchbay("doctor", *script(tmp_path, "def hello(params): write('\\x1b]0;mine\\x07\\n'); sys.exit('\\x1b[2J')"))
    assert ("\x1b" in done.stdout, "\\x1b[2J" in done.stdout) == (False, True)


def test_first_answer_is_limited_by_the_configured_timeout(tmp_path):
    body = """
    loads = True
    def hello(params):
        global loads
        if loads:
            time.sleep(0.3)
            loads = False
        answer()
    """
    found = verdicts(script(tmp_path, body), modes={"approve"}, timeout=0.2)
    assert ("ok", "ok") == (found["hook.hello"].outcome, found["SIGTERM"].outcome)


def test_one_method_of_a_pair_is_a_failure(tmp_path):
    body = """
    def on(method, params):
        answer() if method.startswith("before") else answer(error={"code": -32601, "message": "?"})
    """
    found = verdicts(script(tmp_path, body))
    assert "it knows before_tool and not after_tool" == found["hook.before_tool and hook.after_tool"].words
    assert "it knows before_llm and not after_llm" == found["hook.before_llm and hook.after_llm"].words


def test_changes_the_host_would_undo_are_reported(tmp_path):
    body = """
    def on(method, params):
        answer({"action": "modify", "request": {"tools": [], "messages": []}})
    """
    verdict = verdicts(script(tmp_path, body), modes={"llm"})["hook.before_llm"]
    assert "it changes a system message" in verdict.words
    assert "it changes tools that are not its own" in verdict.words


def test_the_command_prints_verdicts_and_exits_with_1_where_something_is_wrong(tmp_path):
    done = patchbay("doctor", *script(tmp_path, 'def on(method, params): answer({"decision": 1})'))
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


@pytest.mark.parametrize("written", ["{'action': ''}", '{"action":"",}', "{action:1}", '{"action":NaN}'])
def test_invalid_json_is_one_failure(tmp_path, written):
    body = f'def on(method, params):\n    if id: write(\'{{"jsonrpc":"2.0","id":%d,"result":\' % id + {written!r} + \'}}\\n\')'
    found = verdicts(script(tmp_path, body), modes={"tool", "llm", "approve"})
    failures = [each for each in found.values() if each.outcome == "failure"]
    assert ["hook.before_llm"] == [each.check for each in failures]
    assert failures[0].words.startswith("this is not JSON: ")
    assert f'{{"jsonrpc":"2.0","id":2,"result":{written}}}; and so in 5 more checks' in failures[0].words
    assert failures[0].way_out.startswith("Write each answer with a JSON library")


def test_a_greeting_that_is_invalid_json_is_reported(tmp_path):
    (hello,) = verdicts(script(tmp_path, """def hello(params): write('{"id":1,"result":{},}\\n')""")).values()
    assert ("failure", True, True) == (hello.outcome, "this is not JSON" in hello.words, "JSON library" in hello.way_out)


def test_only_points_of_the_hook_are_checked_and_the_duration_is_a_check_of_its_own(tmp_path):
    found = verdicts(script(tmp_path, ""), modes={"approve"})
    assert ["hook.hello", "hook.approve_tool"] == [check for check in found if check.startswith("hook.")][:2]
    assert not any(check.startswith("hook.before") for check in found)
    assert ("ok", "", True) == (
        found["standard output"].outcome,
        found["standard output"].words,
        "ms" in found["slowest answer"].words,
    )


def test_with_strict_a_warning_is_a_failure_and_after_the_command_it_is_passed_to_the_hook_with_a_note(tmp_path):
    command = script(tmp_path, "")
    note = "patchbay: --strict, --json is passed to the hook: options of doctor come before the command.\n"
    for arguments, outcome in (
        (command, (0, "")),
        (("--strict", *command), (1, "")),
        ((*command, "--strict", "--json"), (0, note)),
    ):
        done = patchbay("doctor", *arguments)
        assert outcome == (done.returncode, done.stderr)


def test_list_reports_a_file_without_hooks_and_disabled_hooks(tmp_path):
    config = tmp_path / "patchbay.json"
    config.write_text('{"agents": {}}')
    done = patchbay("list", "--config", config)
    assert (f"{config} has no hooks\n", "") == (done.stdout, done.stderr)
    config.write_text('{"hooks": {"enabled": false}}')
    assert "hooks.enabled is false: no hook runs\n" == patchbay("list", "--config", config).stdout


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_the_hook(tmp_path, number, status):
    marker = tmp_path / "pid"
    command = script(tmp_path, f"def hello(params): open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    pipe = subprocess.PIPE
    arguments = [sys.executable, "-m", "patchbay", "hooks", "doctor", "--timeout", "60", *command]
    with subprocess.Popen(arguments, stdout=pipe, stderr=pipe) as doctor:
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
