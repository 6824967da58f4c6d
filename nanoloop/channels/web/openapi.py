"""The API described for programs (OpenAPI) and for people, from the table that also routes it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from starlette.responses import HTMLResponse, JSONResponse, Response

from nanoloop.channels.web.operation import Call, Operation

_ERROR = {
    "description": "Why not, in a sentence",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        }
    },
}
_STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; }
dt { margin-top: 1rem; } dd { margin: 0 0 0 1.5rem; opacity: .8; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI document of these."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR_SCHEMA}
    for operation in operations:
        described = _described(operation, schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "nanoloop", "version": version("nanoloop")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _described(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "summary": operation.says,
        "operationId": operation.run.__name__,
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation.query)],
        "responses": {str(operation.status): _response(operation), "default": _ERROR},
    }
    if operation.is_public:
        told["security"] = []
    if operation.uploads:
        binary = {"schema": {"type": "string", "format": "binary"}}
        told["requestBody"] = {"required": True, "content": {"application/octet-stream": binary}}
    elif operation.body is not None:
        name = operation.body.__name__
        schemas[name] = operation.body.model_json_schema()
        schema = {"schema": {"$ref": f"#/components/schemas/{name}"}}
        told["requestBody"] = {"content": {"application/json": schema}}
    return told


def _response(operation: Operation) -> dict[str, Any]:
    if operation.status == 204:  # noqa: PLR2004 - HTTP's own
        return {"description": "Done"}
    return {"description": operation.says, "content": {operation.produces: {}}}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(query: type[BaseModel] | None) -> list[dict[str, Any]]:
    if query is None:
        return []
    properties: Mapping[str, Any] = query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": of} for name, of in properties.items()]


def describing(operations: Sequence[Operation]) -> Sequence[Operation]:
    """The operations that describe these and themselves."""

    async def openapi(_: Call) -> Response:
        return JSONResponse(document(everything))

    async def docs(_: Call) -> Response:
        policy = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none'"
        return HTMLResponse(page(everything), headers={"Content-Security-Policy": policy})

    own = (
        Operation(
            method="GET",
            path="/openapi.json",
            says="This API as an OpenAPI document",
            run=openapi,
            is_public=True,
        ),
        Operation(
            method="GET",
            path="/docs",
            says="This API for people",
            run=docs,
            produces="text/html",
            is_public=True,
        ),
    )
    everything = [*operations, *own]
    return own


def page(operations: Iterable[Operation]) -> str:
    """The API for people, a page without scripts."""
    rows = "\n".join(map(_row, operations))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>nanoloop API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>nanoloop API</h1>"
        "<p>JSON in and out; a token goes in <code>Authorization: Bearer …</code>, and without one "
        "every change needs <code>X-Nanoloop: 1</code>. An error is "
        '<code>{"error": {"message", "type"}}</code>. For programs: '
        f'<a href="/openapi.json">openapi.json</a>.</p><dl>{rows}</dl></body></html>'
    )


def _row(operation: Operation) -> str:
    takes = [*_fields("?", operation.query), *_fields("", operation.body)]
    more = f" Takes {', '.join(takes)}." if takes else ""
    return (
        f"<dt><code>{operation.method} {escape(operation.path)}</code></dt>"
        f"<dd>{escape(operation.says)}.{more}</dd>"
    )


def _fields(sign: str, model: type[BaseModel] | None) -> list[str]:
    names = model.model_fields if model is not None else ()
    return [f"<code>{sign}{name}</code>" for name in names]
