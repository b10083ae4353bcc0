"""llama.cpp's server with a model's file on loopback, until standard input ends: ``python serve.py FILE``; prints its URL."""

from __future__ import annotations

import os
import sys

import xllamacpp


def main() -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_ctx = 8192
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.cache_ram_mib = 0
    server = xllamacpp.Server(parameters)
    sys.stdout.write(server.listening_address + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # (its threads may be generating)


if __name__ == "__main__":
    main()
