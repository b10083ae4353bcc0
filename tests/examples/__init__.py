"""The programs of ``examples/``, run as they are."""
