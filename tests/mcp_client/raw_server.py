"""A small MCP server of the handshake era on the standard library alone, which can misbehave: its argument says how."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

HOW = sys.argv[1] if len(sys.argv) > 1 else ""
STATE = Path(sys.argv[2]) if len(sys.argv) > 2 else None
lock = threading.Lock()
asked: list[object] = []
abilities: dict = {}


def send(message: dict) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def answer(number: object, result: object) -> None:
    send({"id": number, "result": result})


def text(words: str) -> dict:
    return {"content": [{"type": "text", "text": words}]}


def tool(name: str, description: str = "A tool.", **schema: object) -> dict:
    return {"name": name, "description": description, "inputSchema": {"type": "object", **schema}}


def tools() -> object:
    if HOW == "names":
        return [tool("a b"), tool("a.b"), tool("a_b"), tool("a_b"), tool("x" * 90), tool("x" * 90 + "y"), tool("weiß")]
    if HOW == "schemas":
        return [
            tool("good"),
            tool("bad", properties={"a": {"type": "nonsense"}}),
            tool("remote", **{"$ref": "http://127.0.0.1:1/x.json"}),
        ]
    if HOW == "invalid":
        array = {"type": "array"}
        return [tool("good"), {"name": "array", "inputSchema": array}, {"inputSchema": {"type": "object"}}, "text", tool("last")]
    if HOW == "no-list":
        return "none"
    if HOW == "liar-of-schemas":
        number, text = {"type": "integer"}, {"type": "string", "pattern": "^(a+)+$"}
        return [{**tool("lie"), "outputSchema": {"type": "object", "properties": {"total": number, "slow": text}}}]
    description = STATE.read_text() if STATE is not None and STATE.exists() else "A tool."
    if HOW == "twice":
        return [tool("pid"), tool("say", description), tool("say")]
    return [
        tool("pid"),
        tool("slow"),
        tool("big"),
        tool("env"),
        tool("ask"),
        tool("malformed"),
        tool("meta"),
        tool("say", description, properties={"n": {"type": "integer"}}),
    ]


def call(number: object, params: dict) -> None:
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "meta":
        answer(number, text(json.dumps(params.get("_meta"))))
        return
    if HOW == "liar":
        answer(999_999, text("unsolicited"))
        answer("1", text("as text"))
        answer(number, text("first"))
        answer(number, text("second"))
    elif name == "pid":
        answer(number, text(str(os.getpid())))
    elif name == "slow":
        threading.Timer(float(arguments.get("seconds", 0.05)), answer, (number, text("slow"))).start()
    elif name == "big":
        answer(number, text("x" * int(arguments["size"])))
    elif name == "env":
        about = {"env": sorted(os.environ), "pgid": os.getpgid(0), "pid": os.getpid(), "client": abilities}
        answer(number, text(json.dumps(about)))
    elif name == "ask":
        asked.append(number)
        form = {"type": "object", "properties": {"size": {"type": "string", "enum": ["S", "M"]}}, "required": ["size"]}
        about = (
            {"mode": "url", "elicitationId": "1", "url": "https://x.example/pay"}
            if arguments.get("url")
            else {"requestedSchema": form}
        )
        send({"id": "question", "method": "elicitation/create", "params": {"message": "Which size?", **about}})
    elif name == "lie":
        answer(number, {**text("?"), "structuredContent": {"total": "many", "slow": "a" * 60 + "!"}})
    elif name == "malformed":
        answer(number, {"content": [{"type": "text"}]})
    elif name == "say":
        answer(number, text(f"said {arguments.get('n')}"))
    else:
        send({"id": number, "error": {"code": -32602, "message": f"Unknown tool: {name}"}})


def main() -> None:
    if HOW == "hang":
        time.sleep(600)
    if HOW == "crash":
        sys.exit("no database")
    if HOW == "leak":
        sys.stdout.write(f"token={os.environ['API_TOKEN']}\n")
        sys.stdout.flush()
        sys.exit(f"\x1b[31m{os.environ['API_TOKEN']} is refused by {os.environ['DATABASE']}, level {os.environ['LEVEL']}")
    if HOW == "noise":
        sys.stdout.write("Welcome to my server!\n")
        sys.stdout.flush()

        def shout() -> None:
            while True:
                sys.stderr.write("noise " * 200 + "\n")

        threading.Thread(target=shout, daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        if number == "question":
            answer(asked.pop(), text(json.dumps(message["result"])))
        elif method == "initialize":
            abilities.update(message["params"]["capabilities"])
            version = message["params"]["protocolVersion"]
            about = {"protocolVersion": version, "serverInfo": {"name": "raw", "version": "1"}}
            answer(number, {**about, "capabilities": {"tools": {"listChanged": True}}})
        elif method == "tools/list":
            answer(number, {"tools": tools()})
        elif method == "tools/call":
            call(number, message["params"])
        elif method == "notifications/cancelled" and STATE is not None:
            STATE.with_suffix(".cancelled").write_text("cancelled")
        elif number is not None:
            send({"id": number, "error": {"code": -32601, "message": f"Method not found: {method}"}})


if __name__ == "__main__":
    main()
