"""A store's seal record: the names of the keys that encrypt its data."""

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
"""The prefix of each encrypted text; earlier versions' texts can be decrypted in any place."""
SEALED = "_sealed"
LOOKED_AT = 64
"""How many sessions are examined before a store without a record is used."""
RECORD = "nanoloop:seal"
"""The key to which a store's seal record is bound."""
NO_KEY = (
    "the data stored here is encrypted, and store.encryption_key is not set: set it to the key "
    "that encrypted it (NANOLOOP_STORE__ENCRYPTION_KEY); nothing was written"
)
WITHOUT_KEYS = (
    "; its conversations have no keys of their own yet, so backups keep erased messages: run "
    "`nanoloop store seal` (for a database on a server, set store.keys_file first)"
)
NO_KEYS_FILE = (
    "the conversations here have keys of their own, but their keys file is unknown: "
    "set store.keys_file to it; nothing was written"
)
NO_RECORD = (
    "the data stored here is encrypted, and the record of its keys is missing: restore the whole "
    "store from a backup; nothing was written"
)
_CHANGED = (
    "the record of the encryption keys was changed by something else: "
    "restore the whole store from a backup; nothing was written"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRecord:
    """What a store records about its encryption; useless without a key.

    Every encrypted text is bound to the id, so nothing copied from another store can be decrypted
    here.
    """

    id: str
    keys: tuple[str, ...]
    """The names of all keys that may have encrypted anything in the store."""
    is_whole: bool
    """True if all data is encrypted, and none of it in the form of earlier versions."""
    secret: bytes
    """The secret for digests that only processes with a key can make; new keys don't change it."""
    keys_id: str = ""
    """The id of the file with the sessions' own keys; "" if they have none."""

    @property
    def advice(self) -> str:
        """Advice to append to a message if backups keep erased data readable; otherwise ""."""
        return "" if self.keys_id else WITHOUT_KEYS

    def text(self, seal: Seal) -> str:
        """Return the record as text, to be stored."""
        value: dict[str, Any] = {"id": self.id, "keys": [*self.keys], "whole": self.is_whole}
        if self.keys_id:
            value["keys_id"] = self.keys_id
        return json.dumps({**value, "proof": seal.seal(self.secret, place("record", value))})

    @classmethod
    def of(cls, text: str, seal: Seal | None) -> Self:
        """Read the record; raise `NotReadable` unless the seal has every key named in it."""
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
                "the data stored here is encrypted with a key that store.encryption_key lacks "
                f"(named {missing[0]}; it has {', '.join(seal.names)}): append that key, after a "
                "comma; nothing was written"
            )
        try:
            return changed(record, secret=seal.open(proof, place("record", value)))
        except ValueError:
            raise NotReadable(_CHANGED) from None


def place(*names: object) -> bytes:
    """Return the place that a text is encrypted for, as bytes."""
    return json.dumps(names, sort_keys=True, default=str, separators=(",", ":")).encode()


async def rebind(database: Database, key: str, session_id: str, *, was: str | None) -> bool:
    """Bind this key if its binding is still `was`; return True if it was bound."""
    if (own := getattr(database, "rebind", None)) is not None:
        done: bool = await own(key, session_id, was=was)
        return done
    # Another package's database may lack this, so two simultaneous writers could both succeed.
    if await database.bound(key) != was:
        return False
    await database.bind(key, session_id)
    return True


def other_key(session_id: str) -> str:
    """Return the error for a session that none of the keys can decrypt."""
    return (
        f"session {session_id!r} is encrypted, and none of the keys can decrypt it: append the "
        "key it was written with to store.encryption_key (NANOLOOP_STORE__ENCRYPTION_KEY), "
        "after a comma"
    )


def is_sealed(value: Any) -> bool:
    """Return True if this version encrypted the value."""
    marks = f"{MARK}.", f"{MARK_OF_KEYS}."
    return isinstance(value, Mapping) and str(value.get(SEALED, "")).startswith(marks)
