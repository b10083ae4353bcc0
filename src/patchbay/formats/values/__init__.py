"""Values as models write them, JSON, Python and Gemma's own, by the character; names and types by the offered tools."""
