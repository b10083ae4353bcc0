"""Examinations of the server's own upstream for the console: ``/api/doctor``, one at a time, the last one kept in memory.

What is examined, and how, is not known here: the command hands the proxy a function (``ProxyApp.examine``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from patchbay.errors import PatchbayError
from patchbay.server.admin_api import admin_router
from patchbay.server.routing import KNOWN_PARAMETERS, json_response
from patchbay.server.upstream import Examine, Finding

if TYPE_CHECKING:
    from patchbay.server.proxy import ProxyApp

_NO_STORE: Final = {"cache-control": "no-store"}
_logger = logging.getLogger(__name__)


class ExaminationRunningError(PatchbayError):
    """Another examination runs."""

    code = "examination_running"
    status = 409


class NoExaminationError(PatchbayError):
    """This server cannot examine its upstream."""

    code = "no_examination"
    status = 409


class Wanted(BaseModel):
    """The model to examine; "" for the first that the upstream lists."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(default="", max_length=300)


@dataclass
class _Examination:
    """One examination. Times are in seconds since 1970, ``ended`` 0.0 while it runs; ``check`` is what runs now."""

    model: str
    began: float = field(default_factory=time.time)
    ended: float = 0.0
    state: Literal["running", "done", "cancelled", "failed"] = "running"
    check: str = ""
    findings: list[Finding] = field(default_factory=list)

    def begins(self, check: str, model: str = "") -> None:
        """Note the check that begins, and the model once it is known."""
        self.check, self.model = check, model or self.model


class Examinations:
    """The examinations of a proxy's upstream: one at a time, of which the last is kept. For one event loop."""

    def __init__(self, proxy: ProxyApp) -> None:
        self._proxy = proxy
        self._last: _Examination | None = None

    def begin(self, model: str) -> None:
        """Begin to examine a model. Raises ExaminationRunningError, and NoExaminationError where this server cannot."""
        examine = self._proxy.examine
        if examine is None:
            raise NoExaminationError("This server cannot examine its upstream: it was not started by a command of Patchbay.")
        if self._last is not None and self._last.state == "running":
            raise ExaminationRunningError("An examination runs already: wait for its end, or cancel it.")
        self._last = _Examination(model)
        self._proxy.examination = asyncio.create_task(self._run(self._last, examine), name="doctor")

    def cancel(self) -> None:
        """Cancel the examination that runs, if one does."""
        if self._proxy.examination is not None:
            self._proxy.examination.cancel()

    async def _run(self, last: _Examination, examine: Examine) -> None:
        state: Literal["done", "cancelled", "failed"] = "cancelled"
        try:
            async with aclosing(examine(last.model, begins=last.begins)) as findings:
                async for finding in findings:
                    last.findings.append(finding)
            state = "done"
        except Exception:
            state = "failed"
            _logger.exception("The examination of the upstream failed")
        finally:
            last.ended, last.state, last.check = time.time(), state, ""

    def view(self) -> dict[str, Any]:
        """Return whether the server can examine, and the last examination, as JSON."""
        last = self._last
        about: dict[str, Any] = {"available": self._proxy.examine is not None, "examination": None}
        if last is not None:
            found = [
                {"name": each.name, "status": each.status, "seen": each.seen, "advice": each.advice} for each in last.findings
            ]
            about["examination"] = {
                "model": last.model,
                "state": last.state,
                "began": last.began,
                "ended": last.ended or None,
                "check": last.check,
                "findings": found,
            }
        return about


def make_doctor_router(proxy: ProxyApp, *, needs_token: bool) -> APIRouter:
    """Return the routes over the examinations of a proxy's upstream. ``needs_token``: the server has a token."""
    examinations = Examinations(proxy)
    responses: dict[int | str, dict[str, Any]] = {401: {"description": "The server has a token, which was not sent."}}
    router = admin_router(
        "doctor", "examine the upstream", needs_token=needs_token, responses=responses, dependencies=[KNOWN_PARAMETERS]
    )
    conflict: dict[int | str, dict[str, Any]] = {409: {"description": "Another one runs, or this server cannot examine."}}

    @router.get("", summary="The last examination of the upstream, as far as it has come")
    async def read_examination() -> Response:
        return json_response(examinations.view(), headers=_NO_STORE)

    @router.post("", status_code=202, responses=conflict, summary="Examine a model of the upstream: about 20 requests to it")
    async def begin_examination(wanted: Wanted) -> Response:
        examinations.begin(wanted.model)
        return json_response(examinations.view(), 202, headers=_NO_STORE)

    @router.delete("", status_code=202, summary="Cancel the examination that runs")
    async def cancel_examination() -> Response:
        examinations.cancel()
        return json_response(examinations.view(), 202, headers=_NO_STORE)

    return router
