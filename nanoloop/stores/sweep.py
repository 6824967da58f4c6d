"""The sweep permanently removes expired data with its keys, and counts what remains."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from aiofiles.os import wrap

from nanoloop.errors import NotReadable, SessionDamaged, StoreError
from nanoloop.events import SessionsCounted, announce
from nanoloop.protocols import Store
from nanoloop.session.head import ABOUT
from nanoloop.stores.snapshot import STATE

if TYPE_CHECKING:
    from nanoloop.stores.database import Database, StoredSession
    from nanoloop.stores.sealing import Sealing
    from nanoloop.writing import WriteOrder

SWEEP_SECONDS = 300
"""The pause between two sweeps for expired data."""


async def sweep(
    store: Store,
    *,
    every_seconds: float = SWEEP_SECONDS,
    expired: int = 0,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> None:
    """Announce at once what the store holds; every few minutes, sweep the store and announce again.

    `expired` is the number of sessions removed just before. This returns when the store is closed;
    a store without `wait_closed` is swept until the task is cancelled.
    """

    async def sweeps() -> None:
        removed = expired
        while True:
            with suppress(StoreError):  # retried in the next round, unless closed
                announce(await _counted(store, removed))
            await sleep(every_seconds)
            removed = 0
            with suppress(StoreError):
                removed = await store.delete_expired()

    wait_closed = getattr(store, "wait_closed", anyio.sleep_forever)
    async with anyio.create_task_group() as group:
        group.start_soon(sweeps)
        await wait_closed()
        group.cancel_scope.cancel()


async def _counted(store: Store, expired: int) -> SessionsCounted:
    sessions = entries = pending = 0
    async for info in store.list():
        sessions += 1
        entries += info.entries
        pending += info.pending
    return SessionsCounted(sessions=sessions, entries=entries, pending=pending, expired=expired)


Found = tuple[str, Mapping[str, Any] | None]
"""A session's id, and its head if it exists."""


async def destroy_all(sealing: Sealing, found: Sequence[Found]) -> list[str]:
    """Destroy all keys of these sessions, which makes every copy unreadable.

    Return the sessions' random names; the keys file has a note on each until it is settled.
    """
    keys_file, record = sealing.keys_file, sealing.record
    born = {}
    for session_id, head in found:
        state = None if head is None else sealing.state(head, session_id)
        if state is not None and state.is_keyed and record is not None:
            born[state.born] = json.dumps([record.id, session_id])
    if born and keys_file is not None:
        await wrap(keys_file.destroy)(all_of=born)
    return [*born]


async def destroy_replaced(sealing: Sealing, session_id: str, head: Any) -> None:
    """Destroy all keys of a session that another one has replaced."""
    with suppress(SessionDamaged, NotReadable):  # what it says about its keys may be wrong
        await destroy_all(sealing, [(session_id, head)])


async def end(sealing: Sealing, database: Database, expired: Sequence[StoredSession]) -> None:
    """Destroy all keys of these expired sessions, unless a session was renewed meanwhile."""
    ended: list[Found] = []
    for stored in expired:
        name = str(stored.sections[ABOUT]["id"])
        with suppress(SessionDamaged, NotReadable):  # as above
            ending = sealing.ending(name, stored.head)
            # After this commit, nobody can renew it.
            if ending and await database.commit(ending, now=0) == ending.revision:
                ended.append((name, stored.head))
    await destroy_all(sealing, ended)


async def delete(sealing: Sealing, database: Database, session_id: str) -> None:
    """Delete a session and all of its keys."""
    done: list[str] = []
    with suppress(SessionDamaged):  # as above
        done = await destroy_all(sealing, [(session_id, await database.head(session_id))])
    await database.delete(session_id)
    if done and sealing.keys_file is not None:
        await wrap(sealing.keys_file.settle)(done)


async def settle(sealing: Sealing, database: Database, order: WriteOrder) -> None:
    """Delete sessions whose keys were all destroyed before a kill interrupted the deletion."""
    keys_file, record = sealing.keys_file, sealing.record
    if keys_file is None or record is None:
        return

    async def delete_rest(session_id: str, born: str) -> None:
        head = await database.head(session_id)
        if head is not None and head.get(STATE, {}).get("born") == born:
            await database.delete(session_id)

    settled = []
    for born, note in (await wrap(keys_file.unsettled)()).items():
        store_id, session_id = json.loads(note or '["", ""]')
        if store_id == record.id:
            with suppress(SessionDamaged):
                # In its turn, so that no new session with this name is deleted.
                await order.write(session_id, lambda: delete_rest(session_id, born))  # noqa: B023
            settled.append(born)
    if settled:
        await wrap(keys_file.settle)(settled)
