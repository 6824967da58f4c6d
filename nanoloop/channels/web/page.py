"""The page's files: read once, held in memory, and sent again only where a browser's are older."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from nanoloop.channels.web.refusal import error_response

STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class _File:
    """One of them, ready to be sent."""

    body: bytes
    mime_type: str
    etag: str

    @classmethod
    def at(cls, path: Path) -> _File:
        """The file as it is now."""
        body = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return cls(body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')

    def response(self, request: Request) -> Response:
        """What a browser gets that asks for it: an update is seen at once."""
        headers = {"Cache-Control": "no-cache", "ETag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.mime_type, headers=headers)


def page_routes(folder: Path = STATIC) -> list[BaseRoute]:
    """The page, and what it is made of."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    files = {path.relative_to(folder).as_posix(): _File.at(path) for path in paths}

    async def page(request: Request) -> Response:
        return files["index.html"].response(request)

    async def part(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            return error_response(404, "there is nothing here")
        return file.response(request)

    return [Route("/", page), Route("/static/{name:path}", part)]
