"""The one table of formats: a row for each way of writing calls. A further format is one file and one row here."""

from __future__ import annotations

from dataclasses import dataclass

from patchbay.errors import ConfigurationError


@dataclass(frozen=True)
class Format:
    """One way of writing calls. ``families`` are the models that use it; ``auto`` says that it is found without being named."""

    name: str
    families: tuple[str, ...]
    markers: tuple[str, ...]
    auto: bool


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format(
            name="fenced",
            families=("any model that follows instructions (the contract)",),
            markers=("```tool_call", "~~~tool_call", "```json", "```"),
            auto=True,
        ),
    )
}


def check_format(name: str) -> None:
    """Raise ConfigurationError unless ``name`` is "auto" or a format of the table."""
    if name != "auto" and name not in FORMATS:
        raise ConfigurationError(f"Unknown format {name!r}. Known formats: auto, {', '.join(FORMATS)}.")
