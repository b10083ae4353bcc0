"""Real processes, killed: the server, the plugins' host, the plugins."""
