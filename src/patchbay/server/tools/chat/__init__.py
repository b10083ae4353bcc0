"""The chat door: ``/v1`` of the tool server, where a model is given the registry's tools.

What lives here: which role a request is for (``role``), when it is a turn and when it passes as in the proxy (``door``), the turn
(``turning``) with the upstream as its model (``model``), what the client is told of it (``answer``), and what is remembered
between two requests of one conversation (``stretches``). What does not: the loop (``patchbay.loop``), how calls are carried out
(``patchbay.executor``), and what a model is asked and what its text means (``patchbay.models``).
"""
