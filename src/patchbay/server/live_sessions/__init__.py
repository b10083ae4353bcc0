"""``WS /api/sessions/{role}``: a client holds a live session with a model that has the role's tools."""
