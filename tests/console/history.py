"""A day of counts, for the console's charts: what a server has that ran for a day."""

from __future__ import annotations

import math
import random
import time

from patchbay._redaction import Redactor
from patchbay.cli.serving import examination_of
from patchbay.hooks import Meta
from patchbay.hooks.events import CallRecord
from patchbay.models.attempt import Attempt
from patchbay.models.options import TextOptions
from patchbay.server.app import ToolsApp
from patchbay.server.turns import TurnStore

MODELS = {
    # Requests a minute at noon, seconds, tokens of the prompt, share of errors, and how tools reach it.
    "qwen3-8b-instruct": (6.0, 1.6, 1900, 0.01, "text", "hermes"),
    "mistral-small-3.2": (3.0, 2.8, 1400, 0.03, "text", "mistral"),
    "llama-3.1-8b-instruct": (2.0, 1.2, 900, 0.02, "text", "llama3_json"),
    "gpt-oss-20b": (1.0, 5.5, 2600, 0.06, "native", ""),
}
TOOLS = {"get_weather": (2.5, 0.15, 0.01), "search_flights": (1.5, 0.7, 0.05), "hold_seat": (0.4, 0.05, 0.0)}


def remember_a_day(app: ToolsApp) -> None:
    """Count what a day has brought, and let the console examine the upstream."""
    assert app.proxy is not None
    app.proxy.examine = examination_of(app.proxy.settings)
    usage, store, chance = app.proxy.turns.usage, TurnStore(), random.Random(7)
    now = time.time()
    clock, usage._clock = usage._clock, lambda: at
    for minute in range(24 * 60, 0, -1):
        at = now - 60 * minute
        busy = 0.25 + 0.75 * math.sin(math.pi * ((1440 - minute) / 1440)) ** 2
        for model, (rate, seconds, tokens, errors, mode, _) in MODELS.items():
            for _ in range(round(busy * rate * chance.uniform(0.3, 1.7))):
                turn = store.begin("t", "chat", None, Redactor())
                turn.model, turn.agent, turn.ended, turn.status = model, "travel", at, 502 if chance.random() < errors else 200
                turn.seconds = seconds * chance.lognormvariate(0.0, 0.5)
                counts = (int(tokens * chance.uniform(0.6, 1.4)), chance.randrange(20, 300), int(tokens * 0.5))
                turn.attempts = (Attempt(None, None, at, mode=mode, options=TextOptions(), counts=counts),)
                if chance.random() < 0.4:
                    turn.attempts[0].calls = (("", chance.choice(list(TOOLS)), "{}"),)
                    turn.settled = [
                        CallRecord(at, Meta(), {}, "", "", "", "", (), "", is_error=False, code="", result_chars=0, seconds=0.0)
                    ]
                usage.add_turn(turn)
        for tool, (rate, seconds, errors) in TOOLS.items():
            for _ in range(round(busy * rate * chance.uniform(0.3, 1.7))):
                code = "tool_timeout" if chance.random() < errors else ""
                took = seconds * chance.lognormvariate(0.0, 0.6)
                meta = Meta(agent_id="travel")
                usage.add_call(CallRecord(at, meta, {}, "", tool, "", "", (), "", bool(code), code, 0, took))
    usage._clock = clock
