"""Commits of which nobody knows whether they happened: the connection broke before the answer."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID, uuid4

from nanoloop.stores.database import Commit

_LIMIT = 10_000
"""So many sessions may be unsure at once; of older ones a conflict is heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """What of a commit is needed to know a later one for its continuation."""

    token: UUID
    revision: int
    entries: tuple[str, ...]
    sections: frozenset[str]
    rewrites: bool

    def leads_to(self, commit: Commit) -> bool:
        """Whether that one says all that this one did, so that it may stand in its place."""
        begins = tuple(entry.id for entry in commit.entries[: len(self.entries)])
        is_same = self.revision == commit.revision and begins == self.entries
        return is_same and self.sections <= commit.sections.keys() and not self.rewrites


class Unsure:
    """Gives each commit a token, and the same one to the commit that repeats it."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()

    def token_for(self, commit: Commit) -> UUID:
        """From now on nobody knows what became of this commit, until it is `settled`."""
        earlier = self._attempts.pop(commit.id, None)
        token = earlier.token if earlier is not None and earlier.leads_to(commit) else uuid4()
        self._attempts[commit.id] = _Attempt(
            token=token,
            revision=commit.revision,
            entries=tuple(entry.id for entry in commit.entries),
            sections=frozenset(commit.sections),
            rewrites=bool(commit.rewritten),
        )
        if len(self._attempts) > _LIMIT:
            self._attempts.popitem(last=False)
        return token

    def settled(self, session_id: str) -> None:
        """The outcome is known."""
        self._attempts.pop(session_id, None)
