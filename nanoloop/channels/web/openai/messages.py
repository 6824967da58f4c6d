"""The messages of a request, checked and brought into one form; what of them is new."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nanoloop.channels.web.malformed import quoted
from nanoloop.channels.web.openai.refusing import Unfit, unfit

Message = dict[str, Any]
SEEN = ("data:image/", "http://", "https://")
"""Where an image may be; no other address leaves this place, above all none of ours."""
SYSTEM = {"system", "developer"}


def checked_messages(given: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with what is known of them and nothing else; raises a refusal."""
    return [_checked(message, f"messages[{index}]") for index, message in enumerate(given)]


def _checked(message: Mapping[str, Any], where: str) -> Message:
    role = message.get("role")
    take = _ROLES.get(role) if isinstance(role, str) else None
    if take is None:
        raise unfit(f"{where}.role", f"one of {', '.join(sorted(_ROLES))}, not {quoted(role)}")
    taken = take(message, where)
    name = message.get("name")
    return {**taken, "name": name} if isinstance(name, str) and role != "tool" else taken


def _system(message: Mapping[str, Any], where: str) -> Message:
    return {"role": "system", "content": _text(message.get("content"), where)}


def _user(message: Mapping[str, Any], where: str) -> Message:
    return {"role": "user", "content": _content(message.get("content"), where)}


def _assistant(message: Mapping[str, Any], where: str) -> Message:
    content = message.get("content") or message.get("refusal")
    said: Message = {"role": "assistant", "content": _text(content, where) if content else None}
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise unfit(f"{where}.tool_calls", "a list of calls")
    if calls:
        said["tool_calls"] = [_call(call, f"{where}.tool_calls") for call in calls]
    return said if calls or content else {**said, "content": ""}


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise unfit(where, "calls of functions")
    known = {"name": function.get("name"), "arguments": function.get("arguments") or "{}"}
    if not all(isinstance(value, str) for value in (*known.values(), call.get("id"))):
        raise unfit(where, "each with an id, a name and arguments as text")
    return {"id": call["id"], "type": "function", "function": known}


def _tool(message: Mapping[str, Any], where: str) -> Message:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        raise unfit(f"{where}.tool_call_id", "the id of the call that this is the result of")
    content = _text(message.get("content"), where)
    return {"role": "tool", "tool_call_id": call_id, "content": content}


_ROLES: Mapping[str, Callable[[Mapping[str, Any], str], Message]] = {
    "assistant": _assistant,
    "developer": _system,
    "system": _system,
    "tool": _tool,
    "user": _user,
}


def _content(content: Any, where: str) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise unfit(f"{where}.content", "a text, or a list of parts")
    return [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]


def _text(content: Any, where: str) -> str:
    parts = _content(content, where)
    if isinstance(parts, str):
        return parts
    if any(part["type"] != "text" for part in parts):
        raise unfit(f"{where}.content", "only text may stand here")
    return "\n".join(part["text"] for part in parts)


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in {"text", "refusal"} and isinstance(part.get(kind), str):
        return {"type": "text", "text": part[kind]}
    if kind == "image_url":
        return {"type": "image_url", "image_url": _image(part.get("image_url"), where)}
    raise unfit(where, "a part is a text or an image_url")


def _image(image: Any, where: str) -> dict[str, str]:
    known = {"url": image} if isinstance(image, str) else image
    url = known.get("url") if isinstance(known, Mapping) else None
    if not isinstance(url, str) or not url.startswith(SEEN):
        raise unfit(f"{where}.image_url", "an address that begins with https: or data:image/")
    detail = known.get("detail")
    return {"url": url, "detail": detail} if isinstance(detail, str) else {"url": url}


def image_bytes(url: str) -> bytes:
    """What a data URL holds; raises a refusal where it is broken."""
    head, _, data = url.partition(",")
    try:
        if head.endswith(";base64"):
            return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Unfit(400, "an image is no valid base64", param="messages", code="invalid_base64_image")


def parted(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """What system messages say at the beginning, and all that follows."""
    first = next((i for i, said in enumerate(messages) if said["role"] != "system"), len(messages))
    told = [said["content"] for said in messages[:first] if said["content"].strip()]
    return "\n\n".join(told), list(messages[first:])


def new_parts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """What users say after all that was answered, as parts; raises a refusal for nothing.

    In a session the rest is known: what came before, and what the agent's prompt is.
    """
    answered = max(
        (i for i, m in enumerate(messages) if m["role"] in {"assistant", "tool"}), default=-1
    )
    new = [message for message in messages[answered + 1 :] if message["role"] == "user"]
    parts = [part for message in new for part in _parts_of(message["content"])]
    if not any(part["type"] != "text" or part["text"].strip() for part in parts):
        raise unfit("messages", "the last one has to be a user's, and say something")
    return parts


def _parts_of(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
