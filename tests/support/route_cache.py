"""Validators and signatures of FastAPI's routes, made once in a process: they are most of the CPU time of a server's start."""

from __future__ import annotations

import inspect
from typing import Any

import fastapi._compat.v2
import fastapi.dependencies.utils
from pydantic import TypeAdapter

_adapters: dict[Any, TypeAdapter[Any]] = {}
_signatures: dict[Any, inspect.Signature] = {}
_signature_of = fastapi.dependencies.utils._get_signature


def share_route_parts() -> None:
    """Let each app use what the apps before it have made."""
    fastapi._compat.v2.TypeAdapter = _kept_adapter  # type: ignore[assignment,misc]
    fastapi.dependencies.utils._get_signature = _kept_signature


def _kept_adapter(annotated: Any, config: Any = None) -> TypeAdapter[Any]:
    """Return the validator of a type of an API; each app has a hundred of the same few types."""
    key = (annotated.__origin__, repr(annotated.__metadata__), repr(config))
    if key not in _adapters:
        _adapters[key] = TypeAdapter(annotated, config=config)
    return _adapters[key]


def _kept_signature(call: Any) -> inspect.Signature:
    """Return the signature of a route: each app's are functions of their own, with the code and annotations of the last app's."""
    if not inspect.isfunction(call):
        return _signature_of(call)
    key = (call.__code__, call.__defaults__, *(call.__kwdefaults__ or {}).items(), *call.__annotations__.items())
    if key not in _signatures:
        _signatures[key] = _signature_of(call)
    return _signatures[key]
