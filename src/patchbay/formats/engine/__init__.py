"""The incremental engine: the text being read, markers and the scanner, and where what was found is told."""
