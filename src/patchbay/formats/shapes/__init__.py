"""The shapes of a marked call: JSON, Python, XML, a name and its arguments; ``regions.bodies`` tries each in each wrapper."""
