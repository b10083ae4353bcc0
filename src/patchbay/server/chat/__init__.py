"""Chat completions: passed through an Exchange, or run as turns with the registry's tools."""
