"""Sends an answer's files to its chat, each only once, and explains why any were not sent.

Files are sent together with the text if possible, otherwise before it, so that the text can mention
any that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nanoloop.attachments import Attachments
from nanoloop.bounded import BoundedDict
from nanoloop.channels.kit.platform import FormatRefused, Place, Platform, Text, Upload
from nanoloop.errors import SendLater, reason_of
from nanoloop.events import FileLeftOut, announce
from nanoloop.messages import Attachment, Outbound
from nanoloop.sentences import Say
from nanoloop.session.entry import SCHEME

if TYPE_CHECKING:
    from nanoloop.attachments import StoredFile
    from nanoloop.channels.kit.drafts import Progress

MOST_TRIES = 5
"""How many times to try a file that fails temporarily before sending the text without it."""
REMEMBERED = 1000
_PASSING = {"rate limit", "not connected"}
"""Reasons to retry that do not depend on the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """Where to send an answer's files, and under which names to record them."""

    item: Outbound
    place: Place
    answer: str
    """The name under which the posted files are recorded."""
    name: str
    """The prefix of the messages' ids, the same for every attempt."""
    reply_to: str | None

    @property
    def with_text(self) -> _Way:
        """Return a copy for files sent together with the text, whose record covers both."""
        return replace(self, answer=f"{self.answer} with text")


class FileSender:
    """Posts the files that belong to answers, on one platform."""

    def __init__(
        self,
        platform: Platform,
        *,
        progress: Progress,
        attachments: Attachments | None,
        say: Say,
    ) -> None:
        self._platform = platform
        self._progress = progress
        self._attachments = attachments
        self._say = say
        self._tries: BoundedDict[str, int] = BoundedDict(REMEMBERED)

    async def send(
        self, item: Outbound, *, answer: str, in_one: Callable[[str], Text | None]
    ) -> str:
        """Post the files that are not posted yet, and return the text that is still to be sent.

        `in_one` returns the text if it fits in a message with a file and none of it is shown yet.
        Raises `SendLater`; the next attempt resumes with the files that are not posted yet.
        """
        place, name = Place.of(item.chat), f"{item.id}.files"
        way = _Way(
            item=item,
            place=place,
            answer=f"{answer} {name}",
            name=name,
            reply_to=item.reply_to,
        )
        known = [await self._known(item, file) for file in item.attachments]
        lost = [each for each in known if isinstance(each, str)]
        text = "\n\n".join(filter(None, (item.text, *lost)))
        done = await self._send_with_text(way, known, text, in_one)
        rest = [text] if not done else []
        for group in self._groups(known, after=done):
            rest += await self._send_group(way, known, group)
        return "\n\n".join(filter(None, rest))

    def forget(self, item: Outbound, *, answer: str) -> None:
        """Forget which files were posted, once the whole answer has been delivered."""
        for kind in ("", " with text"):
            if self._progress.begun(record := f"{answer} {item.id}.files{kind}"):
                self._progress.finish(record)

    async def _known(self, item: Outbound, file: Attachment) -> StoredFile | str:
        """Return the stored file, or a sentence that says why it can't be sent."""
        kept = None
        if self._attachments is not None:
            file_id = file.ref.removeprefix(SCHEME)
            kept = await self._attachments.to_send(item.session_id or "", file_id)
        if kept is None:
            return self._say("file_gone", name=file.name or "")
        most = self._platform.limits.file_bytes
        if kept.size > most:
            size, room = _megabytes(kept.size, up=True), _megabytes(most)
            return self._say("file_large", name=kept.name, size=size, most=room)
        return kept

    async def _send_with_text(
        self,
        way: _Way,
        known: Sequence[StoredFile | str],
        text: str,
        in_one: Callable[[str], Text | None],
    ) -> int:
        """Send the first files together with the text if possible; return how many were sent."""
        way, bare = way.with_text, way
        if self._progress.begun(way.answer) and (posted := self._progress.of(way.answer).messages):
            return len(posted)
        caption = None
        if self._platform.limits.caption and not self._progress.begun(bare.answer):
            caption = in_one(text)
        first = next(self._groups(known), None)
        if caption is None or first is None:
            return 0
        if not await self._post(way, known, first, caption):
            return 0
        return first[-1] + 1

    async def _send_group(
        self, way: _Way, known: Sequence[StoredFile | str], group: Sequence[int]
    ) -> list[str]:
        """Send files in one message, or one by one; return a sentence for each refused file."""
        posted = self._progress.of(way.answer, name=way.name).messages
        if len(posted) > group[-1]:
            return [self._refusal(known[n]) for n in group if not posted[n]]
        if await self._post(way, known, group):
            return []
        if len(group) > 1:
            return [
                said for number in group for said in await self._send_group(way, known, [number])
            ]
        self._note(way, "", group)
        return [self._refusal(known[group[0]])]

    def _refusal(self, known: StoredFile | str) -> str:
        return known if isinstance(known, str) else self._say("file_refused", name=known.name)

    async def _post(
        self,
        way: _Way,
        known: Sequence[StoredFile | str],
        group: Sequence[int],
        caption: Text | None = None,
    ) -> bool:
        """Post these files in one message; return False if the platform refuses them."""
        name = f"{way.answer} {group[0]} {len(group)}"
        tries = self._tries[name] = self._tries.get(name, 0) + 1
        reason = "it fails again and again"
        if tries <= MOST_TRIES:  # the last one may have been cut off
            try:
                message = await self._posted(way, known, group, caption)
            except SendLater as later:
                if later.reason in _PASSING:
                    self._tries[name] -= 1
                if tries < MOST_TRIES or later.reason in _PASSING:
                    raise
                reason = later.reason
            except Exception as error:  # noqa: BLE001 - the text matters more than its file
                reason = reason_of(error)
            else:
                self._note(way, message, group)
                return True
        announce(FileLeftOut(channel=self._platform.name, reason=reason))
        return False

    def _note(self, way: _Way, message: str, group: Sequence[int]) -> None:
        """Record the id of the message with these files, or "" for a file that is not sent."""
        posted = self._progress.of(way.answer, name=way.name).messages
        for number in range(len(posted), group[0]):  # a file that can't be sent keeps its number
            self._progress.post(way.answer, "", number=number)
        self._progress.post(way.answer, message, number=group[0], count=len(group))

    async def _posted(
        self,
        way: _Way,
        known: Sequence[StoredFile | str],
        group: Sequence[int],
        caption: Text | None,
    ) -> str:
        files = [await self._upload(known[number]) for number in group]
        about: dict[str, Any] = {
            "reply_to": way.reply_to if group[0] == 0 else None,
            "id": f"{way.name}.{group[0]}",
        }
        try:
            return await self._put(way.place, files, caption, about)
        except FormatRefused:
            if caption is None or caption.formatted is None:
                raise
            return await self._put(way.place, files, replace(caption, formatted=None), about)

    async def _put(
        self, place: Place, files: Sequence[Upload], caption: Text | None, about: dict[str, Any]
    ) -> str:
        first = replace(files[0], caption=caption)
        if len(files) == 1:
            return await self._platform.upload(place, first, **about)
        album: Any = self._platform
        return str(await album.album(place, [first, *files[1:]], **about))

    async def _upload(self, kept: StoredFile | str) -> Upload:
        assert not isinstance(kept, str)  # noqa: S101 - groups hold no others
        data = None if self._attachments is None else await self._attachments.data(kept.id)
        if data is None:
            raise FileNotFoundError(kept.id)
        return Upload(name=kept.name, mime_type=kept.mime_type, data=data)

    def _groups(
        self, known: Sequence[StoredFile | str], *, after: int = 0
    ) -> Iterator[Sequence[int]]:
        """Yield the indexes of the files for each message: consecutive files of the same kind.

        Their total size is within the limit for one file, because all are in memory at once.
        """
        limits, group, size = self._platform.limits, list[int](), 0
        for number in range(after, len(known)):
            kept = known[number]
            if isinstance(kept, str):
                continue
            is_full = len(group) >= limits.album or size + kept.size > limits.file_bytes
            is_full = is_full or group[-1:] != [number - 1]
            if group and (is_full or _sort(known[group[-1]]) != _sort(kept)):
                yield group
                group, size = [], 0
            group.append(number)
            size += kept.size
        if group:
            yield group


def _sort(kept: Any) -> str:
    kind = str(kept.mime_type).partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "file"


def _megabytes(size: int, *, up: bool = False) -> str:
    """Return a size in megabytes, rounded up if `up` is true and down otherwise."""
    return f"{-(-size // 100_000) / 10 if up else size // 100_000 / 10:.1f}"
