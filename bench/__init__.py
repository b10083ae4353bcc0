"""The benchmark: Patchbay beside its peers, measured in one run. ``python -m bench --help``; bench/README.md explains it."""
