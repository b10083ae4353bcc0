"""Models: how tools reach a model and how its calls come back, whatever the model's server can do.

``exchange`` is the whole of one request, without I/O: ``request`` says what is sent, ``answering`` reads a stream,
``completion`` a whole answer, ``choice`` holds them against ``tool_choice``, ``modes`` remembers what was learnt. ``wrap`` puts
it under an ``openai`` client, ``chat`` and ``openai`` are what the loop talks to.
"""
