"""Values in arguments: JSON and Python as models write them, untyped text, and tool names."""
