"""The laws of docs/concepts/architecture.md as property tests, at the level of the parser, the history and the loop."""
