"""Taking files in, and giving them out so that no browser runs what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

from starlette.responses import JSONResponse, Response

from nanoloop.attachments import SCHEME, mime_type_of
from nanoloop.channels.web.access import Refusal
from nanoloop.channels.web.api import ApiCall, Operation, quoted, serve
from nanoloop.channels.web.dialogue import shown_attachment
from nanoloop.errors import AttachmentsFull, PictureRefused

NAME_LIMIT = 120
_GIVEN_OUT = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=31536000, immutable",
}


@serve("POST", "/api/attachments", status=201)
async def upload(call: ApiCall, data: bytes) -> Response:
    """Upload an image or a text; its name goes in the header X-Name, percent-encoded."""
    mime_type = mime_type_of(data) if data else None
    if mime_type is None:
        raise Refusal(415, "send an image (png, jpeg, gif, webp) or a text in UTF-8")
    name = _safe_name(unquote(call.request.headers.get("x-name", "")))
    try:
        kept = await call.backend.attachments.keep(
            data, owner=call.who.prefix, name=name, mime_type=mime_type
        )
    except AttachmentsFull:
        raise Refusal(413, call.backend.parts.sentences.text("files_full")) from None
    except PictureRefused as refused:
        raise Refusal(422, str(refused)) from None
    about: dict[str, Any] = {"ref": f"{SCHEME}{kept.id}", "kind": kept.kind, "name": kept.name}
    about |= {"mime_type": kept.mime_type, "size": kept.size}
    return JSONResponse({"id": kept.id, **shown_attachment(about)}, status_code=201)


def _safe_name(name: str) -> str:
    """The last part of a name, in signs that show."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(sign if sign.isprintable() else " " for sign in last).strip()
    return shown[:NAME_LIMIT] or "file"


@serve("GET", "/api/attachments/{attachment}", produces="application/octet-stream")
async def download(call: ApiCall) -> Response:
    """An uploaded file."""
    attachment_id = str(call.request.path_params["attachment"])
    kept = await call.backend.attachments.about(attachment_id)
    data = await call.backend.attachments.data(attachment_id)
    if kept is None or data is None or not call.who.sees(kept.owner):
        raise Refusal(404, f"there is no file {quoted(attachment_id)}")
    how = "inline" if kept.kind == "image" else "attachment"
    name = quote(kept.name, safe="")
    return Response(
        data,
        media_type=kept.mime_type,
        headers={**_GIVEN_OUT, "Content-Disposition": f"{how}; filename*=UTF-8''{name}"},
    )


OPERATIONS: Sequence[Operation] = (upload, download)
