"""What is new in a request as one message of its session: its text, its images as attachments."""

from __future__ import annotations

from collections.abc import Sequence

from nanoloop.attachments import SCHEME, mime_type_of
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.openai.messages import Message, image_bytes, new_parts
from nanoloop.channels.web.openai.refusing import Unfit, unfit
from nanoloop.errors import AttachmentsFull, PictureRefused
from nanoloop.messages import Attachment

TEXT_CHARS = 100_000
"""Characters that one message may have."""
IMAGES = 10
NAME = "image"


async def new_in(
    desk: Desk, owner: str, messages: Sequence[Message]
) -> tuple[str, Sequence[Attachment]]:
    """The text and the images that a session has not heard yet; raises a refusal."""
    parts = new_parts(messages)
    text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
    images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    if len(text) > TEXT_CHARS:
        raise unfit("messages", f"at most {TEXT_CHARS} characters at a time")
    if len(images) > IMAGES:
        raise unfit("messages", f"at most {IMAGES} images at a time")
    return text, [await _attached(desk, owner, url) for url in images]


async def _attached(desk: Desk, owner: str, url: str) -> Attachment:
    if not url.startswith("data:"):
        return Attachment(kind="image", ref=url)
    data = image_bytes(url)
    mime_type = mime_type_of(data) or ""
    if not mime_type.startswith("image/"):
        raise unfit("messages", "an image is png, jpeg, gif or webp")
    try:
        kept = await desk.attachments.keep(data, owner=owner, name=NAME, mime_type=mime_type)
    except AttachmentsFull:
        raise Unfit(413, desk.shop.sentences.text("files_full")) from None
    except PictureRefused as refused:
        raise Unfit(400, str(refused), param="messages", code="invalid_image") from None
    return Attachment(
        kind="image", ref=f"{SCHEME}{kept.id}", name=NAME, mime_type=kept.mime_type, size=kept.size
    )
