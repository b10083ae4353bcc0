"""The registry of tools: registrations, permissions, snapshots and the store."""
