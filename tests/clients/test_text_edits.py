"""Agents that edit by blocks of text, such as aider, get the model's text as it is, also where tools are offered."""

from __future__ import annotations

import pytest

from patchbay import StreamParser, parse
from patchbay.formats import TextDelta

OLD, NEW = "The colour is blue.\n", "The colour is green.\n"
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"input": {"type": "string"}}}},
    }
    for name in ("apply_patch", "bash", "note", "edit")
]
EDITS = {
    "whole": f"note.txt\n```\n{NEW}```\n",
    "diff": f"note.txt\n```python\n<<<<<<< SEARCH\n{OLD}=======\n{NEW}>>>>>>> REPLACE\n```\n",
    "diff-fenced": f"```\nnote.txt\n<<<<<<< SEARCH\n{OLD}=======\n{NEW}>>>>>>> REPLACE\n```\n",
    "udiff": f"```diff\n--- note.txt\n+++ note.txt\n@@ ... @@\n-{OLD}+{NEW}```\n",
    "patch": f"*** Begin Patch\n*** Update File: note.txt\n@@\n-{OLD}+{NEW}*** End Patch\n",
    "shell": "Run this:\n\n```bash\npytest -q tests\n```\n",
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_text_edit_is_not_a_call(edit: str) -> None:
    reply = parse(edit, tools=TOOLS)
    assert (edit, ()) == (reply.content, reply.tool_calls)
    parser = StreamParser(tools=TOOLS)
    events = [event for character in edit for event in parser.feed(character)] + list(parser.close())
    assert edit == "".join(event.text for event in events if isinstance(event, TextDelta))
