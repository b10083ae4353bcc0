"""Request bodies of the described APIs, read as strict JSON: NaN, Infinity and 1e999 are refused with 422.

Python's reader accepts them and its writers turn them into ``null``: a tool would run with arguments that nobody sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from patchbay.schema.arguments import finite_float, refuse_constant


class StrictJsonRoute(APIRoute):
    """A route whose body must be strict JSON; use it as a router's ``route_class``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, given a request that reads strictly."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictJsonRequest(request.scope, request.receive))

        return handle_strictly


class _StrictJsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return json.loads(body, parse_float=finite_float, parse_constant=refuse_constant)
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise
        except ValueError as error:  # the framework answers JSONDecodeError with 422 and its reason
            raise json.JSONDecodeError(str(error), "", 0) from None
