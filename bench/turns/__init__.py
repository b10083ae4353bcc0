"""``python -m bench --only turns``: what one turn of an agent costs, beside other frameworks (bench/README.md)."""
