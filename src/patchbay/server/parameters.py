"""Query parameters that a route does not have: refused by name, since one that is passed over looks as if it had been heeded."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError


def refuse_unknown(request: Request) -> None:
    """Raise RequestValidationError (422) for parameters that the request's route does not have."""
    known = {each.alias for each in request.scope["route"].dependant.query_params}
    message = f"There is no such parameter. There are: {', '.join(sorted(known))}"
    wrong: list[dict[str, Any]] = [
        {"type": "extra_forbidden", "loc": ["query", name], "msg": message, "input": value}
        for name, value in request.query_params.multi_items()
        if name not in known
    ]
    if wrong:
        raise RequestValidationError(wrong)


KNOWN_PARAMETERS: Final = Depends(refuse_unknown)
"""A dependency of routers whose routes take the query parameters that they describe, and no others."""
