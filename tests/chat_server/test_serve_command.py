"""``patchbay serve --upstream``: the real command before a model that only writes text."""

from __future__ import annotations

import sys
from typing import Any

import openai
import pytest

from patchbay.testing import ContractModel, ScriptedUpstream
from support.cli import run_cli
from support.processes import listening
from tools_server.rig import BOUND, Server, calling_back, json_response

SERVE = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory"]


def test_text_model_uses_a_plugin_tool() -> None:
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        calling_back(json_response({"output": "21 degrees"})) as callback,
    ):
        command = [*SERVE, "--upstream", upstream.url, "--tag", "use_tool", "--roles", "ann,ben"]
        with (
            listening(command, name="patchbay serve", timeout=60) as child,
            openai.OpenAI(base_url=f"{child.url}/v1", api_key="k", timeout=BOUND) as client,
        ):
            server: Any = Server(int(child.url.rpartition(":")[2]), None)  # type: ignore[arg-type]
            server.register(
                "get_weather", callback.url, role="ben", parameters={"type": "object", "properties": {"city": {"type": "string"}}}
            )
            answer = client.chat.completions.create(
                model="small", messages=[{"role": "user", "content": "What is the weather in Rome?"}], user="ben"
            )
            assert "21 degrees" in (answer.choices[0].message.content or "")
            assert "use_tool" in upstream.chats[-1].body.decode()


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--upstream", "127.0.0.1:1"], "must begin with http"), (["--upstream", "http://127.0.0.1:1", "--upstream-key", "--tools"], "needs a key"),
     (["--upstream", "http://localhost:48911", "--port", "48911"], "is this server itself"),
     (["--upstream", "http://127.0.0.1:1", "--format", "nonsense"], "nonsense")],
)  # fmt: skip
def test_flags_that_cannot_work_are_refused(flags: list[str], message: str) -> None:
    done = run_cli(*SERVE[3:], *flags)
    assert 2 == done.returncode
    assert message in done.stderr
