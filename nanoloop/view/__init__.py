"""What of a session its model is shown: made to fit, and as steady as can be.

What is decided stays decided while the window doesn't move, and moves in big steps: each step costs
the provider's cache once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from nanoloop.context import build_messages, system_text
from nanoloop.protocols import Store, ToolSpec
from nanoloop.session.entry import TOOL_RESULT, Entry
from nanoloop.session.session import Session
from nanoloop.view.abridged import Abridged
from nanoloop.view.excerpts import Shortening, with_short_result
from nanoloop.view.tokens import Ratios, entry_tokens, text_tokens, tools_tokens

SHORT = (1500, 400)
"""Characters of a tool's result that stay, where older ones are shortened; the first that does."""
SHORTER = (8000, 2000, 400)
"""The same for the newest ones, where they alone are too much; the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a view keeps to."""

    context_tokens: int | None = None
    """Tokens of a whole request; None for any number."""
    handover: int = 0
    """Pending entries shown word for word until their summary is there; 0 is no handover."""


class Views:
    """The views of all sessions, and what was learnt of the models."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._ratios = Ratios()
        self._abridged: WeakKeyDictionary[Session, Abridged] = WeakKeyDictionary()

    def of(
        self,
        session: Session,
        *,
        prompt: str,
        model: str | None = None,
        tools: Sequence[ToolSpec] = (),
        with_time: bool = False,
        vendor: str = "",
    ) -> View:
        """The view of this session for one exchange."""
        abridged = self._abridged.get(session)
        if abridged is None or abridged.epoch != session.epoch:
            abridged = self._abridged[session] = Abridged(epoch=session.epoch)
        # More than is shown: a cut may bring many at once, and their first words are wanted.
        session.held_pending = 2 * self._bounds.handover
        return View(
            session,
            self._bounds,
            abridged,
            self._ratios,
            prompt=prompt,
            model=model,
            tools=tools,
            with_time=with_time,
            vendor=vendor,
        )


class View:
    """What one exchange asks with."""

    def __init__(
        self,
        session: Session,
        bounds: Bounds,
        abridged: Abridged,
        ratios: Ratios,
        *,
        prompt: str,
        model: str | None,
        tools: Sequence[ToolSpec],
        with_time: bool,
        vendor: str,
    ) -> None:
        self._session = session
        self._bounds = bounds
        self._abridged = abridged
        self._ratios = ratios
        self._prompt = prompt
        self._model = model
        self._tools = 0 if bounds.context_tokens is None else tools_tokens(tools)
        self._with_time = with_time
        self._vendor = vendor
        self._asked = self._asked_last = 0

    async def fill(self, store: Store) -> None:
        """Read what is pending and to be shown, where it is in the store only."""
        missing = self._session.missing_pending()
        if missing is not None:
            after, upto = missing
            read = await store.entries(self._session.id, after=after, upto=upto)
            self._session.bring_back(read, after=after, upto=upto)

    def request(self) -> list[dict[str, Any]]:
        """The messages for the model, as of now; it may cut the session's window to make them."""
        self._bound_pending()
        if self._bounds.context_tokens is not None:
            self._fit(self._bounds.context_tokens / self._ratios.of(self._model))
        return self.shown([*self._pending, *self._session.window])

    def shown(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """How the model is shown these entries, behind all that stands before them."""
        return build_messages(
            self._prompt,
            self._abridged.entries(entries),
            with_time=self._with_time,
            vendor=self._vendor,
            **self._told(),
        )

    def shrink(self) -> bool:
        """Show much less, since it was too long; False where nothing more can be left out."""
        before = self._abridged.sizes([*self._pending, *self._session.window])
        self._asked -= self._asked_last
        did_cut = self._session.shrink()
        pending = self._pending
        self._abridged.give_up(pending, len(pending))
        if did_cut:
            self._abridged.shorten(self._old_upto(), SHORT[0])
        else:
            self._abridged.shorten(self._session.last_seq, SHORTER[-1])
        return self._abridged.sizes(self._session.window) < before

    def learn(self, counted: int) -> None:
        """Hear what the provider counted for all requests of this exchange; 0 where it doesn't."""
        self._ratios.learn(self._model, estimated=self._asked, counted=counted)

    # What is shown

    @property
    def _pending(self) -> list[Entry]:
        """What left the window and is shown all the same."""
        if not self._bounds.handover:
            return []
        return [e for e in self._session.pending if e.seq > self._abridged.extract_upto]

    def _told(self) -> dict[str, Any]:
        session = self._session
        return {
            "summary": session.summary,
            "memo": session.memo,
            "pins": session.pins,
            "ledger": session.ledger,
            "extract": self._abridged.extract(session),
        }

    # Fitting

    def _bound_pending(self) -> None:
        pending = self._pending
        if len(pending) > self._bounds.handover:
            self._abridged.give_up(pending, len(pending) - self._bounds.handover // 2)

    def _fit(self, limit: float) -> None:
        """Leave out what must be: old results first, then of the window, then of all results."""
        # With handover what leaves is shown on for a while, and needs room for that.
        trigger = limit * 0.75 if self._bounds.handover else limit
        tokens = self._tokens()
        if tokens > trigger:
            self._make_room(limit, trigger)
            tokens = self._tokens()
        self._asked_last = tokens
        self._asked += tokens

    def _make_room(self, limit: float, trigger: float) -> None:
        if self._window_tokens() > trigger:
            for chars in SHORT:
                self._shorten_old(trigger / 2, chars)
            if self._window_tokens() > trigger * 0.75:
                room = trigger / 2 - self._fixed_tokens()
                self._session.trim_to_fit(room, self._abridged.size)
        self._fit_pending(limit)
        for chars in SHORTER:
            if self._tokens() <= limit:
                break
            self._abridged.shorten(self._session.last_seq, chars)

    def _fit_pending(self, limit: float) -> None:
        if not (pending := self._pending) or self._tokens() <= limit:
            return
        room = (limit - self._window_tokens()) / 2
        count = len(pending)
        while count > 0 and (room := room - self._abridged.size(pending[count - 1])) >= 0:
            count -= 1
        self._abridged.give_up(pending, count)

    def _shorten_old(self, target: float, chars: int) -> None:
        """Shorten the oldest results until so much is left, none of the step that is going on."""
        tokens, last = self._window_tokens(), self._old_upto()
        rule = Shortening(upto=self._session.last_seq, chars=chars)
        upto = 0
        for entry in self._session.window:
            if tokens <= target or entry.seq > last:
                break
            tokens -= self._abridged.size(entry) - entry_tokens(with_short_result(entry, [rule]))
            upto = entry.seq
        if upto:
            self._abridged.shorten(upto, chars)

    def _old_upto(self) -> int:
        """The number of the last entry before the results that the model has not seen yet."""
        window = self._session.window
        end = len(window)
        while end > 0 and window[end - 1].type == TOOL_RESULT:
            end -= 1
        return window[end - 1].seq if end else 0

    def _tokens(self) -> int:
        return self._window_tokens() + self._abridged.sizes(self._pending)

    def _window_tokens(self) -> int:
        """All that is there without handover too."""
        return self._fixed_tokens() + self._abridged.sizes(self._session.window)

    def _fixed_tokens(self) -> int:
        return self._tools + text_tokens(system_text(self._prompt, **self._told()))
