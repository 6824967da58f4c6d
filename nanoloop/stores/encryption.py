"""Encryption with AES-GCM from the `cryptography` package, which only this file uses."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode

from nanoloop.errors import SettingsError, how_to_install
from nanoloop.stores.sealing import MARK

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.fernet import Fernet, InvalidToken, MultiFernet
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"store.encryption_key needs the package cryptography: {how_to_install('encrypt')}"
    ) from missing

_NONCE_BYTES = 12


class KeySeal:
    """Seals with the first of its keys, and opens what any of them sealed in the same place."""

    def __init__(self, keys: str) -> None:
        """`keys` are separated by commas; raises `SettingsError` if one is not a valid key."""
        words = [key.strip() for key in keys.split(",")]
        try:
            self._fernet = MultiFernet([Fernet(key) for key in words])
        except ValueError as error:  # its text may name the key
            raise SettingsError(
                "store.encryption_key contains something that is not a key: generate one with "
                '`python -c "from cryptography.fernet import Fernet; '
                'print(Fernet.generate_key().decode())"`'
            ) from error
        secrets = [urlsafe_b64decode(key) for key in words]
        self._ciphers = {_name(key): AESGCM(_derived(key, b"seal", 32)) for key in secrets}
        self.names = tuple(self._ciphers)

    def seal(self, data: bytes, place: bytes) -> str:
        """These bytes as text that reveals nothing without a key, and opens in this place only."""
        name, nonce = self.names[0], os.urandom(_NONCE_BYTES)
        sealed = self._ciphers[name].encrypt(nonce, data, place)
        return f"{MARK}.{name}.{urlsafe_b64encode(nonce + sealed).decode()}"

    def open(self, text: str, place: bytes) -> bytes:
        """The original bytes; raises ValueError if no key matches, or the place differs."""
        try:
            name, nonce, sealed = _parted(text)
            return self._ciphers[name].decrypt(nonce, sealed, place)
        except (InvalidTag, KeyError, ValueError) as error:
            raise ValueError("no key matches") from error

    def open_former(self, text: str) -> bytes:
        """What an earlier version sealed for no place; raises ValueError if no key matches."""
        try:
            return self._fernet.decrypt(text)
        except InvalidToken as error:
            raise ValueError("no key matches") from error


def _parted(text: str) -> tuple[str, bytes, bytes]:
    """The key's name, the nonce and what it sealed; raises ValueError for any other text."""
    mark, name, code = text.split(".")
    sealed = urlsafe_b64decode(code)
    # A text has one form only: decoding would overlook foreign characters in it.
    if mark != MARK or urlsafe_b64encode(sealed).decode() != code:
        raise ValueError("nothing that this version sealed")
    return name, sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]


def _derived(key: bytes, use: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=b"nanoloop " + use).derive(key)


def _name(key: bytes) -> str:
    """What a key is called where it must not be shown."""
    return _derived(key, b"name", 4).hex()
