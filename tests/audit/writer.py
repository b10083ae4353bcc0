"""A process that records calls until it is killed: ``writer.py URL``. It says how many it has made when a flush has returned."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time

from patchbay.audit import AuditLog
from patchbay.hooks import CallRecord, Meta


async def work(url: str) -> None:
    log = AuditLog(url)
    for number in itertools.count(1):
        log(
            CallRecord(
                time.time(),
                Meta(turn_id=f"t{number}"),
                {},
                str(number),
                "add",
                "",
                "sha256:0",
                (),
                "",
                is_error=False,
                code="",
                result_chars=1,
                seconds=0.0,
            )
        )
        if number % 7 == 0:
            await log.flush()
            os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
