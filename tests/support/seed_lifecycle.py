"""The registration code of the seed's documentation, verbatim."""

from __future__ import annotations

LIFECYCLE = '''
import asyncio
import httpx

MAIN_SERVER = "http://127.0.0.1:48911"
MY_PORT = 9876
TOOL_NAME = "get_weather"

async def register_with_retry():
    """Call on plugin startup: register the tool once main_server is up,
    retrying indefinitely."""
    payload = {
        "name": TOOL_NAME,
        "description": "Look up the weather in a given city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
        "callback_url": f"http://127.0.0.1:{MY_PORT}/tool_invoke",
        "role": None,
        "source": "my_plugin",
        "timeout_seconds": 30,
    }
    async with httpx.AsyncClient() as client:
        while True:
            try:
                r = await client.post(f"{MAIN_SERVER}/api/tools/register",
                                       json=payload, timeout=5)
                if r.json().get("ok"):
                    return
            except (httpx.ConnectError, httpx.TimeoutException):
                pass  # main_server isn't up yet, try again later
            await asyncio.sleep(2)

async def unregister_on_shutdown():
    """Call before exit: unregister so the LLM doesn't hit a dead callback_url."""
    try:
        async with httpx.AsyncClient(timeout=2) as client:
            await client.post(f"{MAIN_SERVER}/api/tools/unregister",
                              json={"name": TOOL_NAME, "role": None})
    except Exception:
        pass  # main_server is down too — nothing we can do
'''
