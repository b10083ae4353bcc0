"""``python -m bench --only calls``: what one call of a tool costs, by every way that there is to it (bench/README.md)."""
