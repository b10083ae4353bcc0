"""What several folders of tests stand on: a scripted model with a real proxy before it."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass

import pytest
from hypothesis import settings

from patchbay.cli.children import listening
from patchbay.testing import ContractModel, ScriptedUpstream

# No test asks the clock: on a busy machine an example may take any time.
settings.register_profile("patchbay", deadline=None)
settings.load_profile("patchbay")

# A shell without job control has what it runs in the background ignore Ctrl-C, and so would all that tests start and so stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Proxied:
    """A running ``patchbay proxy`` (a real process) and the text-only model server behind it."""

    url: str
    upstream: ScriptedUpstream


@pytest.fixture
def proxied():
    """Start both on free ports; the model refuses ``tools``, as Ollama does."""
    with ScriptedUpstream(ContractModel(), tools="refuse") as upstream:
        command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url]
        with listening(command, name="patchbay proxy") as child:
            yield Proxied(child.url, upstream)
