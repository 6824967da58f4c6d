"""What to do where a disk refuses, by the reason that it gives. Pure."""

from __future__ import annotations

import errno
from collections.abc import Mapping

_ELSEWHERE = "choose a place that may be written in"
_NO_FOLDER = "a file is where a folder should be: choose another place"
_ADVICE: Mapping[int | None, str] = {
    errno.EROFS: _ELSEWHERE,
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "allow larger files there, or choose another place",
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
    errno.EISDIR: "a folder is where a file should be: move it away",
    errno.ENOENT: "no such folder can be made there: choose another place",
    errno.EMFILE: "allow more open files, with `ulimit -n`",
    errno.ENFILE: "allow more open files, with `ulimit -n`",
}


def refusal(error: OSError) -> str:
    """What the disk said, and the next step."""
    return f"{error.strerror or error}: {_ADVICE.get(error.errno, 'check the disk')}"
