"""Client of the server of ``served``, which it starts and stops."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.served import BOUND, Served, serve_script, wait_for

TOKEN = "0123456789abcdef-token"


@dataclass
class Server(Served):
    """A running server, and the calls that were made there."""

    runs: list[threading.Thread] = field(default_factory=list)

    def run(self, path: str, outcomes: list[Any] | None = None, *, session: str = "s1") -> None:
        """Make a call in a thread; its result is appended to ``outcomes``."""

        def work() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):  # the server was stopped
                result = self.ask("POST", f"/run?session={session}", {"path": path})[1]
                if outcomes is not None:
                    outcomes.append(result)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.runs.append(thread)

    def pending(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the pending requests once there are ``count``."""
        (found,) = wait_for(lambda: [each] if len(each := self.ask("GET", "/api/approvals")[1]["approvals"]) == count else None)
        return found

    def awaited(self, request_id: str) -> None:
        """Wait until a run waits for this request."""
        wait_for(lambda: self.ask("GET", f"/api/approvals/{request_id}")[1]["approval"]["awaited"])

    def decide(self, request_id: str, decision: str, **more: Any) -> tuple[int, Any]:
        return self.ask("POST", f"/api/approvals/{request_id}", {"decision": decision, **more})

    def ran(self) -> list[str]:
        """Return the paths that the tool has deleted."""
        return ran(self.folder)

    def reset(self) -> None:
        """Stop all calls, and forget every request."""
        assert self.ask("POST", "/reset")[0] == 200
        self.ended()
        self.runs.clear()

    def ended(self) -> None:
        """Wait for the end of all calls."""
        for thread in self.runs:
            thread.join(BOUND)
            assert not thread.is_alive()


@contextlib.contextmanager
def serving(
    folder: Path, *, database: str | None = None, token: str | None = None, port: int = 0, dies: str = ""
) -> Iterator[Server]:
    """Run a server over a database of the folder; its tool writes into ``log`` there. ``port`` 0 is a free one.

    ``dies`` names the moment at which it ends as by ``kill -9`` (``served``).
    """
    arguments = (database or f"sqlite:///{folder / 'approvals.db'}", str(folder / "log"), str(port))
    script = Path(__file__).with_name("served.py")
    with serve_script(script, *arguments, folder=folder, token=token, environment={"DIES": dies}) as running:
        yield Server(**vars(running))


def ran(folder: Path) -> list[str]:
    """Return the paths that the tool has deleted."""
    log = folder / "log"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []
