"""The chat example: three independent programs, and one answer."""

from __future__ import annotations

import subprocess
import sys

from patchbay.testing import ContractModel, ScriptedUpstream

from .rig import BOUND, EXAMPLES, environment, running, serving


def test_an_answer_uses_the_tool_that_another_example_has_registered() -> None:
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        serving("--upstream", upstream.url) as server,
        running(sys.executable, str(EXAMPLES / "raw_http" / "plugin.py"), server.url) as program,
    ):
        program.says("registered for default")
        command = [sys.executable, str(EXAMPLES / "chat_with_tools.py"), "small", "How is the weather in Oslo?", server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=environment(), check=False)
        assert (0, "") == (done.returncode, done.stderr)
        called, *answer = done.stdout.splitlines()
        assert called.startswith("  get_weather({"), called
        assert "(scripted model)" in "\n".join(answer)
        assert 0 == program.end()
