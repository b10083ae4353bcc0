"""The files in deploy/: they parse, name what there is, and start the real command with their own settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.http_server import ask
from support.processes import listening

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BOUND = 60.0
UNIT = (DEPLOY / "patchbay.service").read_text()
CONTAINERFILE = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
INSTALLED = Path(sys.executable).with_name("patchbay")
KNOWN = set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs" / "reference" / "configuration.md").read_text(), re.MULTILINE))


def values_in_unit(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def unit_environment(state: str) -> dict[str, str]:
    pairs = " ".join(values_in_unit("Environment")).replace("%S", state).split()
    return dict(pair.split("=", 1) for pair in pairs)


def instruction(name: str) -> str:
    [found] = re.findall(rf"^{name} (.*)$", CONTAINERFILE, re.MULTILINE)
    return str(found)


def container_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in instruction("ENV").split())


def is_ready(command: list[str], environment: dict[str, str]) -> bool:
    """Start a command with these settings, and ask for its readiness."""
    with listening(
        [sys.executable, "-m", "patchbay", *command], name="patchbay", timeout=BOUND, environment=environment
    ) as child:
        port = int(re.search(r":(\d+)", child.url)[1])  # type: ignore[index]
        return ask(port, "GET", "/readyz").status == 200


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "patchbay.service"
    unit.write_text(UNIT.replace("/opt/patchbay/bin/patchbay", str(INSTALLED)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=BOUND)
    assert (0, "") == (done.returncode, "\n".join(line for line in done.stderr.splitlines() if "patchbay.service" in line))


def test_the_unit_starts_with_its_settings_and_keeps_its_store_in_the_state_folder(tmp_path: Path) -> None:
    state = tmp_path / "patchbay"
    state.mkdir()
    [command] = values_in_unit("ExecStart")
    program, *arguments = command.split()
    assert "patchbay" == Path(program).name
    environment = unit_environment(str(tmp_path))
    assert environment.keys() <= KNOWN | {"HOME"}
    assert is_ready(arguments, {**environment, "MAIN_SERVER_PORT": "0"})
    assert (state / "tools.db").is_file()


def test_the_unit_is_stopped_later_than_the_server_ends_itself() -> None:
    assert int(values_in_unit("TimeoutStopSec")[0]) > int(unit_environment("")["PATCHBAY_DRAIN_TIMEOUT"])
    grace = COMPOSE["services"]["patchbay"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > int(COMPOSE["services"]["patchbay"]["environment"]["PATCHBAY_DRAIN_TIMEOUT"])


def test_the_container_installs_extras_that_there_are_and_copies_files_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"'/src\[([a-z,]+)\]'", CONTAINERFILE)
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    copied = [source for line in re.findall(r"^COPY (.*)$", CONTAINERFILE, re.MULTILINE) for source in line.split()[:-1]]
    assert [] == [source for source in copied if not (ROOT / source).exists()]


def test_the_container_of_the_compose_file_starts_with_its_settings(tmp_path: Path) -> None:
    service: dict[str, Any] = COMPOSE["services"]["patchbay"]
    environment = {**container_environment(), **service["environment"]}
    assert environment.keys() <= KNOWN
    assert ROOT == (DEPLOY / service["build"]["context"]).resolve()
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert service["environment"]["PATCHBAY_STORE"].startswith("postgresql://")
    command = [*json.loads(instruction("ENTRYPOINT")), *json.loads(instruction("CMD"))]
    assert ["patchbay", "proxy"] == command
    given = {
        **environment,
        "UPSTREAM_BASE_URL": "http://127.0.0.1:9/v1",
        "UPSTREAM_API_KEY": "",
        "PROXY_API_KEY": "a-key-of-this-test",
        "PATCHBAY_STORE": f"sqlite:///{tmp_path / 'proxy.db'}",
        "HOST": "127.0.0.1",
        "PORT": "0",
    }
    assert is_ready(command[1:], given)


def test_ports_and_probes_of_the_container_agree() -> None:
    port = instruction("EXPOSE")
    assert [f"127.0.0.1:{port}:{port}"] == COMPOSE["services"]["patchbay"]["ports"]
    assert f"127.0.0.1:{port}/readyz" in instruction("HEALTHCHECK")
    assert "0.0.0.0" == container_environment()["HOST"]
