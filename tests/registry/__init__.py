"""The registry of tools: who registers what for whom, what readers see of it, and what is kept of it."""
