"""What front-ends ask the upstream beside answers: which models it has, and how many tokens a prompt has."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from patchbay.errors import PatchbayError
from patchbay.models.wire import decode, encode
from patchbay.server.chat.completion import check_is_plain, read_whole
from patchbay.server.http import OwnHeaders, own_headers
from patchbay.server.upstream import ProxyRequest, read_error_body, upstream_status_error

_JSON: Final[OwnHeaders] = own_headers(
    {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
)
_COUNTING: Final = 5.0
"""Seconds for the upstream to count: an estimate is better than a long wait."""


async def ask(request: ProxyRequest, method: str, tail: str, body: bytes | None = None, *, at_root: bool = False) -> Any:
    """Return the JSON that the upstream answers. Raises PatchbayError, ValueError."""
    request.watch.wait()
    answer = await request.upstream.open(method, tail, b"", request.upward(_JSON), body, at_root=at_root)
    try:
        if answer.status >= 400:
            rejection = await read_error_body(answer, request.watch, request.upstream)
            raise upstream_status_error(answer, rejection, chat=False, own_key=request.own_key, redact=request.redact)
        check_is_plain(answer)
        return decode(await read_whole(request, answer))
    finally:
        answer.close()


async def list_models(request: ProxyRequest) -> list[dict[str, Any]]:
    """Return the upstream's models, each with its ``id``. Raises PatchbayError, ValueError."""
    answer = await ask(request, "GET", "/models")
    models = answer.get("data") if isinstance(answer, dict) else None
    return [each for each in models or () if isinstance(each, dict) and isinstance(each.get("id"), str)]


class TokenCounter:
    """Counts with the upstream's own tokenizer where it has one, as llama.cpp does; whether it has is asked once."""

    def __init__(self) -> None:
        self._has_tokenizer = True

    async def count(self, request: ProxyRequest, body: bytes) -> int | None:
        """Return the tokens of the prompt that ``body``, one of chat completions, becomes; None where that is not known."""
        if not self._has_tokenizer:
            return None
        try:
            async with asyncio.timeout(_COUNTING):
                prompt = await ask(request, "POST", "/apply-template", body, at_root=True)
                content = encode({"content": prompt["prompt"], "add_special": True, "parse_special": True})
                answer = await ask(request, "POST", "/tokenize", content, at_root=True)
            return len(answer["tokens"])
        except (ValueError, KeyError, TypeError):
            self._has_tokenizer = False  # it answers something else there
        except PatchbayError as error:
            self._has_tokenizer = error.status not in (404, 405, 501)
        except TimeoutError:
            pass
        return None
