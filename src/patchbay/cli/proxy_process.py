"""The process that serves ``patchbay proxy``: how it is started, what it prints, and its exit status.

``become_proxy`` replaces the process that parsed the flags; what they said goes to the new one through a pipe, so that keys stand
neither in its arguments nor in its environment. Nothing heavy is imported here until it serves.
"""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from patchbay.cli.colour import in_colour

if TYPE_CHECKING:
    from patchbay.server.app import ProxyApp
    from patchbay.server.oversight import Oversight
    from patchbay.server.settings import ProxySettings

_PIPE_SIZE = 60_000


@dataclass(frozen=True)
class Plan:
    """What the flags said: the arguments of ``create_app``, of ``ServeOptions`` and of ``make_oversight`` (None: no hooks).

    Plain JSON values.
    """

    app: dict[str, Any]
    serve: dict[str, Any]
    oversight: dict[str, Any] | None = None


def become_proxy(plan: Plan) -> NoReturn:
    """Replace this process by one that serves ``plan``. Raises ConfigurationError where the plan is absurdly long."""
    from patchbay.errors import ConfigurationError

    message = json.dumps(asdict(plan)).encode()
    if len(message) > _PIPE_SIZE:
        raise ConfigurationError("the flags are too long.")
    reading, writing = os.pipe()
    os.write(writing, message)  # fits the pipe, so this does not wait for its reader
    os.close(writing)
    os.set_inheritable(reading, True)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *_path_flags(), "-m", __name__, str(reading)]
    os.execv(sys.executable, command)  # noqa: S606 - ourselves, without a shell


def _path_flags() -> list[str]:
    """Return the flags with which ``-m`` imports from where this process does: from the current folder only if this one did."""
    if sys.flags.isolated:
        return ["-I"]
    return [] if sys.path and sys.path[0] in ("", str(Path.cwd())) else ["-P"]


def serve_plan(plan: Plan) -> int:
    """Serve until told to stop; return the exit status. Raises ConfigurationError for flags that cannot work."""
    from patchbay.cli.format_flag import given_format
    from patchbay.proxy import create_app
    from patchbay.server.serve import ServeOptions
    from patchbay.server.workers import serve

    settings = {**plan.app, "format": given_format(plan.app.get("format", "auto"))}
    oversight: Oversight | None = None
    if plan.oversight is not None:
        from patchbay.cli.oversight_flags import make_oversight

        oversight = make_oversight(**{**plan.oversight, "config": Path(plan.oversight["config"])})

    def make_app() -> ProxyApp:
        return create_app(**settings, oversight=oversight)

    options = ServeOptions(**plan.serve)
    app = make_app()  # whatever is wrong is said before anything runs
    refuse_itself(app.settings.upstream, options.host, options.port)
    return serve(
        make_app if options.workers > 1 else lambda: app,
        options,
        ready=lambda url: _announce(url, options.host, app.settings, oversight),
    )


def _announce(url: str, host: str, settings: ProxySettings, oversight: Oversight | None) -> None:
    """Say where the proxy is: what is to be put into a client comes first."""
    if settings.api_key is None and not _is_loopback(host):
        print(
            f"patchbay: warning: {host} can be reached from other machines, and there is no --api-key: "
            "anyone there can use this proxy and its upstream.",
            file=sys.stderr,
        )
    bold, dim, plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if in_colour(sys.stdout) else ("", "", "")
    print(f"patchbay proxy listening on {bold}{url}{settings.base_path}{plain}")
    if oversight is not None:
        print(f"  {dim}hooks{plain} {oversight.told}")
        print(f"  {dim}looking on{plain} patchbay tail --server {url}; patchbay approvals watch --server {url}")
    print(f"  {dim}upstream{plain} {settings.upstream}", flush=True)


def refuse_itself(upstream: str, host: str, port: int) -> None:
    """Refuse an upstream that is this server: each request would ask itself until the connections run out."""
    from urllib.parse import urlsplit

    from patchbay.errors import ConfigurationError

    target = urlsplit(upstream)
    if target.port == port and (target.hostname == host or (_is_loopback(target.hostname or "") and _is_loopback(host))):
        raise ConfigurationError(f"the upstream {upstream!r} is this server itself.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _main() -> None:
    from patchbay.cli.failures import USAGE_ERROR, fail
    from patchbay.errors import PatchbayError

    with open(int(sys.argv[1]), encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
        plan = Plan(**json.load(pipe))
    try:
        status = serve_plan(plan)
    except PatchbayError as error:
        fail(str(error), USAGE_ERROR)
    except KeyboardInterrupt:
        status = 0  # told to stop before it served
    sys.exit(status)


if __name__ == "__main__":
    _main()
