"""Folding in one batch of what left the window: read, written, and committed in one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anyio.lowlevel import checkpoint

from nanoloop.events import Announce, SummaryCommitted, SummaryDropped, SummaryStarted
from nanoloop.memory.ledger import Item, found_in, merged
from nanoloop.memory.prefix import PrefixOf
from nanoloop.memory.transcript import batches
from nanoloop.memory.writer import Writer, Written
from nanoloop.protocols import Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.session.window import message_count

READ_AHEAD = 200
"""Entries read from the store at a time."""


class Folding:
    """What is done for each batch; whatever it raises, everything is as it was before."""

    def __init__(
        self,
        store: Store | None,
        writer: Writer,
        *,
        ledger_items: int,
        ledger_chars: int,
        announce: Announce,
        clock: Callable[[], float],
    ) -> None:
        self.store = store
        self._writer = writer
        self._ledger_items = ledger_items
        self._ledger_chars = ledger_chars
        self._announce = announce
        self._clock = clock

    async def next_batch(self, session: Session) -> list[Entry]:
        """The oldest pending entries, as many as one call takes."""
        after, upto = session.covered_seq, session.pending_seq
        entries: Sequence[Entry] = session.pending
        if self.store is not None and (not entries or entries[0].seq > after + 1):
            stored = await self.store.entries(session.id, after=after, upto=upto, limit=READ_AHEAD)
            entries = [entry for entry in stored if session.is_pending(entry)] or entries
        parts = batches(entries, chars=self._writer.chars)
        return parts[0] if parts else []

    async def fold(
        self,
        session: Session,
        batch: Sequence[Entry],
        *,
        epoch: int,
        focus: str = "",
        prefix_of: PrefixOf | None = None,
    ) -> bool:
        """Make them part of the summary; False where what came back was too late for that."""
        started, before = self._clock(), session.summary
        self._announce_start(session, batch)
        # A part of what left may end between a call and its result, which a chat never shows.
        is_whole = batch[-1].seq >= session.pending_seq
        prefix = prefix_of(batch) if prefix_of is not None and is_whole else None
        written = await self._writer.write(batch, before, focus=focus, prefix=prefix)
        found = await _exact_in(batch)
        if session.epoch == epoch and session.summary != before:
            # Someone wrote it anew meanwhile: theirs stands, and the batch goes into that one.
            self._announce(SummaryDropped(session_id=session.id, reason="edited"))
            return True
        if not await self._commit(session, epoch, batch, written, found):
            return False
        self._announce(self._receipt(session, batch, written, started))
        return True

    async def _commit(
        self,
        session: Session,
        epoch: int,
        batch: Sequence[Entry],
        written: Written,
        found: Sequence[Item],
    ) -> bool:
        bounds = {"items": self._ledger_items, "chars": self._ledger_chars}
        is_in_time = session.update_summary(
            written.text,
            seq=batch[-1].seq,
            epoch=epoch,
            ledger=merged(session.ledger, found, **bounds),
            spent=_spent(written),
        )
        if not is_in_time:
            self._announce(SummaryDropped(session_id=session.id, reason="reset"))
            return False
        session.summary_in_progress = True  # until this task ends, so that it stays the only one
        if self.store is not None:
            await self.store.save(session)
            session.release()
        return True

    def _announce_start(self, session: Session, batch: Sequence[Entry]) -> None:
        self._announce(
            SummaryStarted(
                session_id=session.id,
                first_seq=batch[0].seq,
                last_seq=batch[-1].seq,
                messages=message_count(batch),
            )
        )

    def _receipt(
        self, session: Session, batch: Sequence[Entry], written: Written, started: float
    ) -> SummaryCommitted:
        return SummaryCommitted(
            session_id=session.id,
            first_seq=batch[0].seq,
            last_seq=batch[-1].seq,
            messages=message_count(batch),
            model=written.model,
            tokens_in=written.usage.tokens_in,
            tokens_out=written.usage.tokens_out,
            tokens_cached=written.usage.tokens_cached,
            seconds=round(self._clock() - started, 3),
            tries=written.tries,
        )


async def _exact_in(batch: Sequence[Entry]) -> list[Item]:
    found: list[Item] = []
    for entry in batch:
        found += found_in(entry)
        await checkpoint()  # a long talk takes milliseconds to look through
    return found


def _spent(written: Written) -> dict[str, int]:
    return {
        "calls": written.tries,
        "tokens_in": written.usage.tokens_in,
        "tokens_out": written.usage.tokens_out,
        "tokens_cached": written.usage.tokens_cached,
    }
