"""Session services: they store sessions with their state and their log of events, in memory or in a database."""
