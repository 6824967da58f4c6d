"""Encryption with Fernet from the `cryptography` package, which only this file uses."""

from __future__ import annotations

from nanoloop.errors import SettingsError, how_to_install

try:
    from cryptography.fernet import Fernet, InvalidToken, MultiFernet
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"store.encryption_key needs the package cryptography: {how_to_install('encrypt')}"
    ) from missing


class FernetSeal:
    """Seals with the first of its keys, and opens what any of them sealed."""

    def __init__(self, keys: str) -> None:
        """`keys` are separated by commas; raises `SettingsError` if one is not a valid key."""
        try:
            self._fernet = MultiFernet([Fernet(key.strip()) for key in keys.split(",")])
        except ValueError as error:  # its text may name the key
            raise SettingsError(
                "store.encryption_key contains something that is not a key: generate one with "
                '`python -c "from cryptography.fernet import Fernet; '
                'print(Fernet.generate_key().decode())"`'
            ) from error

    def seal(self, data: bytes) -> str:
        """These bytes as text that reveals nothing without a key."""
        return self._fernet.encrypt(data).decode()

    def open(self, text: str) -> bytes:
        """The original bytes; raises ValueError if no key matches."""
        try:
            return self._fernet.decrypt(text)
        except InvalidToken as error:
            raise ValueError("no key matches") from error
