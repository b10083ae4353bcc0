"""A ``serve`` of a travel agency: its tools, its approvals, and models of several families, for the pictures of the console."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from patchbay.models.options import TextOptions
from patchbay.server.app import ToolsApp, create_tools_app
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.server.settings import ChatSettings
from patchbay.testing import ScriptedUpstream, Text
from patchbay.testing.script import Answer, error
from support.http_server import serving
from support.served import BOUND, wait_for

QUESTION = "What is the cheapest flight from Hamburg to Tromsø on Friday, and will it snow there?"
SLOW = "Compare the three hotels at the harbour, with breakfast and without."
HEADERS = {"content-type": "application/json", "X-Patchbay-Session": "ann"}
POLICY = """
[[approvals.rules]]
name = "prices are asked for once"
tools = ["search_flights"]
outcome = "ask"
"""

Day = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$", description="As in 2026-12-04.")]


def search_flights(origin: str, destination: str, day: Day) -> dict[str, Any]:
    """Find flights between two airports on one day, the cheapest first.

    :param origin: IATA code of the airport.
    :param destination: IATA code of the airport.
    """
    time.sleep(0.4)
    return {"flights": [
        {"flight": "SK 4425", "departs": f"{day} 06:40", "euros": 189, "via": "OSL"},
        {"flight": "LH 860", "departs": f"{day} 11:05", "euros": 246, "via": "MUC"},
    ]}  # fmt: skip


def get_weather(place: str, days: Annotated[int, Field(ge=1, le=10)]) -> dict[str, Any]:
    """The weather forecast of a place."""
    time.sleep(0.15)
    return {"place": place, "days": days, "snow_cm": [8, 12], "celsius": -6}


def hold_seat(flight: str, seat: str) -> str:
    """Reserve a seat for 20 minutes."""
    return f"{seat} on {flight} is held."


THOUGHT = "<think>\nA flight from HAM to TOS, and the weather there. Both can be asked for at once.\n</think>\n\n"
FLIGHT = (
    '<tool_call>\n{"name": "search_flights", "arguments": {"origin": "HAM", "destination": "TOS", "day": "DAY"}}\n</tool_call>'
)
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Tromsø", "days": 3,}}\n</tool_call>'
FINAL = (
    "The cheapest flight from Hamburg to Tromsø on Friday is SK 4425 at 06:40, by way of Oslo: 189 € with hand luggage.\n\n"
    "Yes, it will snow: 8 to 12 cm are expected, at −6 °C. Take the early flight if you can, since the later one arrives in "
    "the snowfall."
)


def _spoken(text: str) -> Text:
    return Text(text, piece=4, gap=0.008)


def answer(body: dict[str, Any]) -> Answer:
    """Answer as the model of a request does."""
    said = json.dumps(body["messages"], ensure_ascii=False)
    if QUESTION in said:
        if "SK 4425" in said:
            return _spoken(FINAL)
        day = "2026-12-04" if '\\"Friday\\"' in said else "Friday"
        return _spoken(f"{THOUGHT}I look both up.\n\n{FLIGHT.replace('DAY', day)}\n{WEATHER}")
    if SLOW in said:
        return Text("The first one has the better view, but " * 9, piece=4, gap=1.0)
    model, last = body["model"], json.dumps(body["messages"][-1])
    if "minutes" in last:
        return error(503, "The model is being loaded: 41 %.")
    if "is held" in last or "celsius" in last:
        return _spoken("Done. I have noted it in your trip.")
    if "seat" in last:
        return _spoken(_call(model, "hold_seat", {"flight": "SK 4425", "seat": "14A"}))
    if "snow" in last:
        return _spoken(_call(model, "get_weather", {"place": "Bergen", "days": 2}))
    return _spoken("The Danube is 2,850 kilometres long: from the Black Forest to the Black Sea.")


def _call(model: str, name: str, arguments: dict[str, Any]) -> str:
    """A call as the model's family writes it."""
    if model.startswith("mistral"):
        return f"[TOOL_CALLS][{json.dumps({'name': name, 'arguments': arguments})}]"
    if model.startswith("llama"):
        return json.dumps({"name": name, "parameters": arguments})
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


OTHERS = [
    ("qwen3-8b-instruct", "How long is the Danube?"),
    ("mistral-small-3.2", "Hold seat 14A on SK 4425, please."),
    ("llama-3.1-8b-instruct", "Is there snow in Bergen this week?"),
    ("gpt-oss-20b", "When is the museum in Oslo open?"),
    ("qwen3-8b-instruct", "Is there snow in Bergen, or only rain?"),
    ("mistral-small-3.2", "Summarise the minutes of Tuesday in five sentences."),
    ("llama-3.1-8b-instruct", "Hold a seat at the window on SK 4425."),
    ("qwen3-8b-instruct", "Which river is longer, the Danube or the Rhine?"),
    ("gpt-oss-20b", "Is the fish market open on Sundays?"),
    ("mistral-small-3.2", "How much snow is there in Bergen?"),
]


@dataclass
class Agency:
    """The running server."""

    port: int

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def open(self, method: str, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
        """Return the response after its head; it is abandoned at the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), HEADERS)
            with connection.getresponse() as response:
                yield response

    @contextlib.contextmanager
    def chat(self, model: str, question: str) -> Iterator[http.client.HTTPResponse]:
        """Send a question, and return the response after its head."""
        system = {"role": "system", "content": "You are the travel desk of Nordlicht. Answer briefly."}
        body = {"model": model, "messages": [system, {"role": "user", "content": question}], "stream": True}
        with self.open("POST", "/v1/chat/completions", body) as response:
            yield response

    def turn(self, model: str, question: str) -> str:
        """Send a question and wait for the answer; return the id of its turn."""
        with self.chat(model, question) as response:
            response.read()
            return response.headers["x-request-id"] or ""

    def approve(self) -> None:
        """Wait for a call that waits, and approve it after a moment."""

        def pending() -> Any:
            with self.open("GET", "/api/approvals") as response:
                return json.load(response)["approvals"]

        (request,) = wait_for(pending)
        time.sleep(0.5)
        with self.open("POST", f"/api/approvals/{request['id']}", {"decision": "approve", "by": "maria"}) as response:
            assert 200 == response.status


@contextlib.contextmanager
def running_agency(
    folder: Path, *, earlier: int = 3, prepare: Callable[[ToolsApp], object] = lambda app: None
) -> Iterator[tuple[Agency, str]]:
    """Run the agency with ``earlier`` times the other turns, and then one that runs. Yields it, and the id of the turn of QUESTION.

    ``prepare`` gets the application before it serves.
    """
    policy = folder / "patchbay.toml"
    policy.write_text(POLICY)
    with ScriptedUpstream(answer, model="qwen3-8b-instruct") as upstream:
        app = create_tools_app(
            ("travel",),
            upstream=upstream.url,
            chat=ChatSettings(options=TextOptions(tools="text", repair_rounds=1)),
            governance=Governance(GovernanceSettings(config=policy)),
        )
        for function in (search_flights, get_weather, hold_seat):
            app.managers["travel"].register_tool(function)
        prepare(app)
        with serving(app) as port:
            agency = Agency(port)
            for _ in range(earlier):
                for model, question in OTHERS:
                    agency.turn(model, question)
            person = threading.Thread(target=agency.approve)
            person.start()
            turn = agency.turn("qwen3-8b-instruct", QUESTION)
            person.join()
            with agency.chat("qwen3-8b-instruct", SLOW) if earlier else contextlib.nullcontext():
                yield agency, turn
