"""Where conversations are kept: sessions with their state and their log of events.

``InMemorySessionService`` keeps them in the process, ``DatabaseSessionService`` in a database by URL.
"""
