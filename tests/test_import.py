"""``import patchbay`` is light: nothing but the standard library until something is used."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module

from patchbay.cli.commands import COMMANDS

PROBE = """
import json, sys
before = set(sys.modules)
import patchbay
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(new - set(sys.stdlib_module_names))))
"""


def test_import_patchbay_imports_no_third_party_module():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True)
    assert ["patchbay"] == json.loads(done.stdout)


SERVER = """
import json, os, signal, sys
from patchbay.proxy import create_app
from patchbay.server.runtime import listen_on, run_server

def ready():
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} & {"websockets", "sqlalchemy", "openai", "mcp"})))
    os.kill(os.getpid(), signal.SIGTERM)

run_server(create_app("http://127.0.0.1:9/v1"), listen_on("127.0.0.1", 0), drain_timeout=1, ready=ready)
"""


def test_proxy_starts_without_rarely_needed_modules():
    done = subprocess.run([sys.executable, "-c", SERVER], capture_output=True, text=True, timeout=60, check=True)
    assert [] == json.loads(done.stdout)


HELP = """
import json, sys
from patchbay.cli import main
try:
    main(["--help"])
except SystemExit:
    names = {".".join(name.split(".")[:2]) for name in sys.modules}
    print(json.dumps(sorted(names & {"rich", "openai", "patchbay.formats", "patchbay.models", "patchbay.server", "typer.rich_utils"})))
"""


def test_command_list_loads_no_command():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=60, check=True)
    assert "  approvals  Review pending tool calls." in done.stdout.splitlines()
    assert [] == json.loads(done.stdout.splitlines()[-1])


def test_every_listed_command_exists():
    for name, (place, _) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        assert callable(getattr(import_module(module), attribute)), name
