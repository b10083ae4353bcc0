"""The families: one short declarative file for each group of formats. What reads them is the engine."""
