"""Whether a memo has the shape its owner wants: a check, a pydantic model or a JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Schema = Callable[[Any], Any] | Mapping[str, Any]
"""A callable that says no by False or an exception, a pydantic model class, or a JSON schema."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def fits(value: Any, schema: Schema | None) -> bool:
    """Whether the value passes; anything passes where there is no schema."""
    if schema is None:
        return True
    if isinstance(schema, Mapping):
        return _fits_json_schema(value, schema)
    check = getattr(schema, "model_validate", schema)
    try:
        return check(value) is not False
    except (ValueError, TypeError, KeyError, AssertionError):
        return False


def _fits_json_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """By type, enum, required, properties, additionalProperties and items; the rest is ignored."""
    if not _has_type(value, schema.get("type")):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, Mapping):
        return _fits_object(value, schema)
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        return all(_fits_json_schema(item, items) for item in value)
    return True


def _has_type(value: Any, wanted: Any) -> bool:
    if wanted is None:
        return True
    names = [wanted] if isinstance(wanted, str) else wanted
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES.get(name, object)) for name in names)


def _fits_object(value: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    properties = schema.get("properties") or {}
    if any(name not in value for name in schema.get("required") or ()):
        return False
    extra = [name for name in value if name not in properties]
    if extra and schema.get("additionalProperties") is False:
        return False
    known = (name for name in value if name in properties)
    return all(_fits_json_schema(value[name], properties[name]) for name in known)
