"""Command-line flags of settings, declared in the metadata of their dataclass fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Flag:
    """The flag of a field, and its environment variables (default: ``PATCHBAY_`` and its name).

    ``type`` and ``default`` are those of the command line where they differ from the field's; ``parse`` converts a value.
    """

    help: str
    name: str = ""
    env: tuple[str, ...] = ()
    metavar: str | None = None
    type: Any = None
    default: Any = ...
    parse: Callable[[Any], Any] | None = None
    min: int | None = None
    max: int | None = None


def flag(help: str, **options: Any) -> dict[str, Flag]:  # noqa: A002  (as the command line's parser names it)
    """Return the metadata of a field with a flag."""
    return {"flag": Flag(help, **options)}


def flag_of(field: Field[Any]) -> Flag | None:
    """Return a field's flag."""
    found: Flag | None = field.metadata.get("flag")
    return found


def build(settings: type[T], values: Mapping[str, Any], **more: Any) -> T:
    """Create settings from the values of their flags, unless None, and ``more`` fields. Raises ConfigurationError."""
    for field in fields(settings):  # type: ignore[arg-type]
        declared, value = flag_of(field), values.get(field.name)
        if declared is not None and value is not None and field.name not in more:
            more[field.name] = value if declared.parse is None else declared.parse(value)
    return settings(**more)
