"""The doors that speak HTTP. Today: the proxy that gives working tool calls to any OpenAI-compatible client and model.

What lives here: ASGI applications, what they may forward, their log file, how they are run (``serve``), and the way to the
upstream (``client``). What does not: what a chat request and its answer mean (``models.exchange``, sans I/O), and the command
line (``cli``). Raw ASGI, no web framework: this is the hot path, and ``bench`` measures it.
"""
