"""A store's seal record: which keys encrypt what is stored, and what it is bound to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import TYPE_CHECKING, Any, Self

from nanoloop.errors import NotReadable
from nanoloop.protocols import Seal
from nanoloop.stores.keys import MARK_OF_KEYS

if TYPE_CHECKING:
    from nanoloop.stores.database import Database

MARK = "n2"
"""What each sealed text begins with; earlier versions wrote texts that open anywhere."""
SEALED = "_sealed"
RECORD = "nanoloop:seal"
"""The key to which a store's seal record is bound."""
NO_KEY = (
    "what is stored here is encrypted, and store.encryption_key is not set: set it to the key that "
    "encrypted it (NANOLOOP_STORE__ENCRYPTION_KEY); nothing was written"
)
WITHOUT_KEYS = (
    "; its conversations have no keys of their own yet, so that backups keep what is erased: run "
    "`nanoloop store seal`, for a database on a server with store.keys_file set"
)
NO_KEYS_FILE = (
    "the conversations here have keys of their own, and it is not known where: set "
    "store.keys_file to their keys file; nothing was written"
)
NO_RECORD = (
    "what is stored here is encrypted, and the record of its keys is missing: restore the whole "
    "store from a backup; nothing was written"
)
_CHANGED = (
    "the record of the keys that encrypt what is stored here was changed by something else: "
    "restore the whole store from a backup; nothing was written"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRecord:
    """What a store knows about its seal; it is kept in the store, and is of no use without a key.

    Everything sealed names the id, so that nothing of another store opens here.
    """

    id: str
    keys: tuple[str, ...]
    """The names of the keys that something may be sealed with."""
    is_whole: bool
    """Whether nothing plain is left, nor anything that an earlier version sealed."""
    secret: bytes
    """For digests that only processes with a key can make, and that no new key changes."""
    keys_id: str = ""
    """The keys file with the keys of its sessions; "" if they have none of their own."""

    @property
    def advice(self) -> str:
        """Words to append if what is erased stays readable in backups, on how to end that."""
        return "" if self.keys_id else WITHOUT_KEYS

    def text(self, seal: Seal) -> str:
        """The form in which it is kept."""
        value: dict[str, Any] = {"id": self.id, "keys": [*self.keys], "whole": self.is_whole}
        if self.keys_id:
            value["keys_id"] = self.keys_id
        return json.dumps({**value, "proof": seal.seal(self.secret, place("record", value))})

    @classmethod
    def of(cls, text: str, seal: Seal | None) -> Self:
        """Read it; raises `NotReadable` unless the seal has every key that it names."""
        try:
            value = json.loads(text)
            proof = str(value.pop("proof"))
            names = tuple(map(str, value["keys"]))
            record = cls(
                id=str(value["id"]),
                keys=names,
                is_whole=value["whole"],
                secret=b"",
                keys_id=str(value.get("keys_id", "")),
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            raise NotReadable(_CHANGED) from None
        if seal is None:
            raise NotReadable(NO_KEY)
        if missing := [name for name in record.keys if name not in seal.names]:
            raise NotReadable(
                "what is stored here is encrypted with a key that store.encryption_key lacks "
                f"(named {missing[0]}; it has {', '.join(seal.names)}): append that key, after a "
                "comma; nothing was written"
            )
        try:
            return changed(record, secret=seal.open(proof, place("record", value)))
        except ValueError:
            raise NotReadable(_CHANGED) from None


def place(*names: object) -> bytes:
    """What a sealed text is bound to."""
    return json.dumps(names, sort_keys=True, default=str, separators=(",", ":")).encode()


async def rebind(database: Database, key: str, session_id: str, *, was: str | None) -> bool:
    """Bind this key unless it is bound to something other than `was`; whether that was done."""
    if (own := getattr(database, "rebind", None)) is not None:
        done: bool = await own(key, session_id, was=was)
        return done
    # A database of another package, which may not know it: two at the same moment could both win.
    if await database.bound(key) != was:
        return False
    await database.bind(key, session_id)
    return True


def other_key(session_id: str) -> str:
    """Why a session that none of the keys opens can't be read."""
    return (
        f"session {session_id!r} is encrypted, and none of the keys can decrypt it: append the "
        "key it was written with to store.encryption_key (NANOLOOP_STORE__ENCRYPTION_KEY), "
        "after a comma"
    )


def is_sealed(value: Any) -> bool:
    """Whether this version sealed it."""
    marks = f"{MARK}.", f"{MARK_OF_KEYS}."
    return isinstance(value, Mapping) and str(value.get(SEALED, "")).startswith(marks)
