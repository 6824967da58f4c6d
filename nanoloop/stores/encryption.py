"""Encryption with AES-GCM from the `cryptography` package, which only this file uses."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from pathlib import Path

from nanoloop.errors import SettingsError, how_to_install
from nanoloop.stores.keys import KeysFile
from nanoloop.stores.seal_record import MARK

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.fernet import Fernet, InvalidToken, MultiFernet
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"store.encryption_key needs the cryptography package: {how_to_install('encrypt')}"
    ) from missing

_NONCE_BYTES = 12


class KeySeal:
    """Encrypts with the first key and decrypts with any of them; binds each text to one place."""

    def __init__(self, keys: str, *, keys_file: Path | None = None) -> None:
        """Take one or more `keys`, separated by commas; raise `SettingsError` if one is not valid.

        With `keys_file`, each conversation, person and upload has a key of its own in that file.
        """
        words = [key.strip() for key in keys.split(",")]
        try:
            self._fernet = MultiFernet([Fernet(key) for key in words])
        except ValueError as error:  # its text may contain the key
            raise SettingsError(
                "store.encryption_key contains something that is not a key: generate one with "
                '`python -c "from cryptography.fernet import Fernet; '
                'print(Fernet.generate_key().decode())"`'
            ) from error
        secrets = [urlsafe_b64decode(key) for key in words]
        self._ciphers = {_name(key): Cipher(_derived(key, b"seal", 32)) for key in secrets}
        self.names = tuple(self._ciphers)
        self.keys_file = None if keys_file is None else KeysFile(keys_file, self)

    def seal(self, data: bytes, place: bytes) -> str:
        """Return these bytes as encrypted text, which can only be decrypted with the same place."""
        name = self.names[0]
        return f"{MARK}.{name}.{self._ciphers[name].seal(data, place)}"

    def open(self, text: str, place: bytes) -> bytes:
        """Return the original bytes; raise ValueError if no key matches or the place differs."""
        mark, name, code = text.split(".")
        if mark != MARK or name not in self._ciphers:
            raise ValueError("this text was not encrypted with any of these keys")
        return self._ciphers[name].open(code, place)

    def cipher(self, keys: Iterable[bytes]) -> Cipher:
        """Return a cipher that needs all of these keys to decrypt."""
        return Cipher(_derived(b"".join(keys), b"keys", 32))

    def open_former(self, text: str) -> bytes:
        """Decrypt text written by an earlier version; raise ValueError if no key matches."""
        try:
            return self._fernet.decrypt(text)
        except InvalidToken as error:
            raise ValueError("no key matches") from error


class Cipher:
    """Encrypts and decrypts with one key."""

    def __init__(self, key: bytes) -> None:
        self._aes = AESGCM(key)

    def seal(self, data: bytes, place: bytes) -> str:
        """Return these bytes as encrypted text."""
        nonce = os.urandom(_NONCE_BYTES)
        return urlsafe_b64encode(nonce + self._aes.encrypt(nonce, data, place)).decode()

    def open(self, code: str, place: bytes) -> bytes:
        """Return the decrypted bytes; raise ValueError if the key or the place is wrong."""
        sealed = urlsafe_b64decode(code)
        # Each text has only one valid form, but decoding would ignore foreign characters in it.
        if urlsafe_b64encode(sealed).decode() != code:
            raise ValueError("this text was not encrypted by this version")
        try:
            return self._aes.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place)
        except InvalidTag as error:
            raise ValueError("no key matches") from error


def _derived(key: bytes, use: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=b"nanoloop " + use).derive(key)


def _name(key: bytes) -> str:
    """Return a name that identifies the key without revealing it."""
    return _derived(key, b"name", 4).hex()
