"""The media store, and what of a tool's files the model and the user are given."""
