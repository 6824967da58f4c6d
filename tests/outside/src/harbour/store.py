"""A store in one JSON file: simple, slow, and true to all that stores promise."""

import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync

from nanoloop.errors import AlreadyHeard, StoreError
from nanoloop.plugins import Plugin
from nanoloop.protocols import Node, OwedSession
from nanoloop.session.entry import Entry
from nanoloop.stores.database import (
    COMMIT_ID,
    FORGET_NODE_SECONDS,
    HEARD_SECONDS,
    Commit,
    HeardMessage,
    StoredSession,
    granted,
    text_of,
)
from nanoloop.stores.opening import Opening
from nanoloop.stores.snapshot import owed_session, window_start
from nanoloop.stores.store import DatabaseStore

EMPTY = {"sessions": {}, "keys": {}, "heard": {}, "nodes": {}}


class Cupboard:
    """As `nanoloop.stores.database.Database`; each call has the file to itself."""

    def __init__(self, file: Path, *, read_only: bool = False) -> None:
        self._file = file
        self._read_only = read_only

    # The file

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _load(self) -> dict[str, Any]:
        try:
            return json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return json.loads(json.dumps(EMPTY))

    def _change(self, act: Callable[[dict[str, Any]], Any]) -> Any:
        if self._read_only:
            raise StoreError(f"{self._file} is open read-only: nothing was written")
        with self._alone():
            known = self._load()
            result = act(known)
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps(known))
            fresh.replace(self._file)
        return result

    async def _read(self, act: Callable[[dict[str, Any]], Any]) -> Any:
        return await _told(lambda: act(self._load()))

    async def _write(self, act: Callable[[dict[str, Any]], Any]) -> Any:
        return await _told(lambda: self._change(act))

    # Sessions

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        def act(known: dict[str, Any]) -> bool:
            old = known["sessions"].get(commit.id)
            if (None if old is None else old["head"]["rev"]) != over:
                return False
            hear(known, commit)
            known["sessions"][commit.id] = take({"sections": {}, "entries": {}, "size": 0}, commit)
            return True

        return await self._write(act)

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        def act(known: dict[str, Any]) -> int | None:
            row = known["sessions"].get(commit.id)
            if row is None or is_over(row, now):
                return None
            stood = row["head"]["rev"]
            if stood == commit.revision:
                hear(known, commit)
                take(row, commit)
            elif row["head"].get(COMMIT_ID) == commit.commit_id:
                return commit.revision
            return stood

        return await self._write(act)

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        row = await self._row(session_id)
        return None if row is None else row["head"]

    async def window(self, session_id: str) -> StoredSession | None:
        row = await self._row(session_id)
        return None if row is None else stored(row, after=window_start(row["head"]) - 1)

    async def whole(self, session_id: str) -> StoredSession | None:
        row = await self._row(session_id)
        return None if row is None else stored(row, after=0)

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        row = await self._row(session_id)
        return [] if row is None else entries(row, after, upto)[:limit]

    async def _row(self, session_id: str) -> Any:
        return await self._read(lambda known: known["sessions"].get(session_id))

    async def delete(self, session_id: str) -> None:
        await self._write(lambda known: known["sessions"].pop(session_id, None))

    async def delete_expired(self, *, now: int) -> int:
        def act(known: dict[str, Any]) -> int:
            over = [name for name, row in known["sessions"].items() if is_over(row, now)]
            for name in over:
                del known["sessions"][name]
            since = now - HEARD_SECONDS * 1_000_000
            known["heard"] = {name: at for name, at in known["heard"].items() if at >= since}
            return len(over)

        return await self._write(act)

    async def glances(self, *, now: int) -> AsyncIterator[StoredSession]:
        rows = (await self._read(lambda known: known["sessions"])).values()
        for row in sorted(rows, key=lambda row: row["updated_at"], reverse=True):
            if not is_over(row, now):
                yield stored(row, after=row["head"]["last"])

    async def names(self) -> AsyncIterator[str]:
        for name in await self._read(lambda known: known["sessions"]):
            yield name

    async def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        rows = await self._read(lambda known: known["sessions"])
        for name, row in rows.items():
            if row["owes"] in ({1, 2} if pending else {1}) and not is_over(row, now):
                yield owed_session(name, row["head"])

    # Processes, messages, keys

    async def beat(self, node: Node) -> Sequence[Node]:
        def act(known: dict[str, Any]) -> list[Node]:
            now = time.time()
            nodes = [
                Node(age=now - seen, holds=frozenset(holds), id=name, place=place, pid=pid)
                for name, (place, pid, holds, seen) in known["nodes"].items()
            ]
            holds = sorted(granted(node, nodes))
            known["nodes"][node.id] = [node.place, node.pid, holds, now]
            for each in nodes:
                if each.age > FORGET_NODE_SECONDS:
                    del known["nodes"][each.id]
            mine = Node(id=node.id, place=node.place, pid=node.pid, holds=frozenset(holds))
            return [mine, *(each for each in nodes if each.id != node.id)]

        return await self._write(act)

    async def leave(self, node_id: str) -> None:
        await self._write(lambda known: known["nodes"].pop(node_id, None))

    async def has_heard(self, chat: str, message_id: str) -> bool:
        return await self._read(lambda known: json.dumps([chat, message_id]) in known["heard"])

    async def heard(self) -> AsyncIterator[HeardMessage]:
        for name, at in (await self._read(lambda known: known["heard"])).items():
            chat, message_id = json.loads(name)
            yield HeardMessage(chat=chat, id=message_id, at=at)

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        def act(known: dict[str, Any]) -> None:
            for each in messages:
                known["heard"].setdefault(json.dumps([each.chat, each.id]), each.at)

        await self._write(act)

    async def bind(self, key: str, session_id: str) -> None:
        await self._write(lambda known: known["keys"].update({key: session_id}))

    async def bound(self, key: str) -> str | None:
        return await self._read(lambda known: known["keys"].get(key))

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        for item in (await self._read(lambda known: known["keys"])).items():
            yield item

    async def close(self) -> None:
        """Nothing is open between two calls."""


async def _told(work: Callable[[], Any]) -> Any:
    try:
        return await run_sync(work)
    except OSError as error:
        raise StoreError(f"the cupboard failed: {error.strerror}; look at the disk") from error


def hear(known: dict[str, Any], commit: Commit) -> None:
    names = [json.dumps(message) for message in commit.heard]
    if any(name in known["heard"] for name in names):
        raise AlreadyHeard(commit.id)
    known["heard"].update(dict.fromkeys(names, commit.updated_at))


def take(row: dict[str, Any], commit: Commit) -> dict[str, Any]:
    for entry, text in zip(commit.entries, commit.texts, strict=True):
        row["entries"][str(entry.seq)] = text.decode()
    for entry in commit.rewritten:
        row["entries"][str(entry.seq)] = text_of(entry).decode()
    row["sections"].update(commit.sections)
    row["size"] += commit.grows
    row.update(
        head=dict(commit.head),
        updated_at=commit.updated_at,
        expires_at=commit.expires_at,
        owes=commit.owes,
    )
    return row


def is_over(row: Mapping[str, Any], now: int) -> bool:
    return row["expires_at"] is not None and row["expires_at"] < now


def entries(row: Mapping[str, Any], after: int, upto: int | None = None) -> list[Entry]:
    numbered = sorted((int(seq), text) for seq, text in row["entries"].items())
    return [
        Entry.from_dict(json.loads(text), seq=seq)
        for seq, text in numbered
        if seq > after and (upto is None or seq <= upto)
    ]


def stored(row: Mapping[str, Any], *, after: int) -> StoredSession:
    return StoredSession(
        head=row["head"], sections=row["sections"], entries=entries(row, after), size=row["size"]
    )


def make(opening: Opening, url: str) -> DatabaseStore:
    """The store at `cupboard:FILE`, or in the data folder for `cupboard:`."""
    file = Path(url.partition(":")[2] or opening.data / "cupboard.json")
    return DatabaseStore(Cupboard(file, read_only=opening.read_only), seal=opening.seal)


PLUGIN = Plugin(name="cupboard", settings=None, make=make)
