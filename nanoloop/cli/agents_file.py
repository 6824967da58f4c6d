"""Writes AGENTS.md beside the settings, for anyone who helps with the bot."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from nanoloop.files import make_folder, replace_file, user_folder
from nanoloop.parts import ATTACHMENTS, recall_file
from nanoloop.settings import Settings
from nanoloop.settings.files import NAME
from nanoloop.stores.place import default_url, shown

FILE = "AGENTS.md"
_MARK = "<!-- Written by nanoloop, which replaces it: keep your own notes in another file. -->"
_TEXT = """\
# A nanoloop bot

{mark}

For people and agents who help with this bot. It is a chat bot that keeps every conversation.
Everything it knows is in the data folder and the conversation store listed below.

## What lives where

| what | where |
|---|---|
| settings | `{settings}`, and one file for each agent in `{agents}` |
| the service's keys | `{variables}`, if `nanoloop service install` was run |
| data folder | `{data}` |
| conversations | `{store}` |
| files that people sent | `{attachments}` |
| people who got access with a code | `{data}/pairing.sqlite` |
| how far each chat platform has been read | `{data}/channels/` |
| the web page's token, if the settings have none | `{data}/web-token` |
| search index, built again if it is missing | `{recall}` |
| models, downloaded again if they are missing | `{models}` |
| log, one JSON object per line | `nanoloop service logs`, or standard error of `nanoloop run` |

## Diagnose in six commands

```bash
# Is it running, are its channels connected, and what failed last?
nanoloop status{flags}
# Do the settings, model, store and channels work? Failures come with a next step.
nanoloop doctor{flags}
# Each setting, and where its value came from; keys are masked.
nanoloop config{flags}
# The latest log lines of the service.
nanoloop service logs -n 100
# The conversations.
nanoloop sessions list{flags}
# Everything that is stored about one of them, in one file, without keys.
nanoloop debug-report{flags} CHAT
```

`nanoloop docs` lists the documentation of the installed version; `nanoloop docs --search WORDS`
searches it. A changed settings file is applied within seconds; the log line `settings_reloaded`
says what needs a restart. If the bot refuses to start because its conversations are in another
store, or are gone, find out why before you run `nanoloop store adopt`.

## Never delete

- The conversations: `{store}`, and files next to it whose names begin with the same word.
- `{attachments}`, `{data}/pairing.sqlite` and `{data}/channels/`.
- The setting `store.encryption_key`, if there is one: nothing sealed can be read without it.
- The keys file, `{data}/secret-keys/store.keys` or the setting `store.keys_file`: the same.

Before you repair anything, stop the bot and copy the whole data folder. To remove a conversation,
use `nanoloop sessions`, not the file system or SQL.
"""


def write_agents_file(settings: Settings) -> Path | None:
    """Write AGENTS.md beside the settings file, unless someone else wrote the existing one.

    Return the file, or None if it was left unchanged.
    """
    folder = _folder(settings)
    file = folder / FILE
    if file.exists() and _MARK not in file.read_text(encoding="utf-8", errors="replace"):
        return None
    make_folder(folder)
    replace_file(file, agents_text(settings).encode(), durable=False)
    return file


def agents_text(settings: Settings) -> str:
    """Return the text of AGENTS.md for these settings."""
    data, folder = settings.data.absolute(), _folder(settings)
    return _TEXT.format(
        mark=_MARK,
        settings=settings.own_file.absolute() if settings.own_file else folder / NAME,
        agents=folder / "agents",
        variables=user_folder("config", os.environ) / "service.env",
        data=data,
        store=shown(settings.store.url or default_url(data), data),
        attachments=data / ATTACHMENTS,
        recall=recall_file(settings).absolute(),
        models=settings.models.absolute(),
        flags="".join(_flags(settings)),
    )


def _folder(settings: Settings) -> Path:
    file = settings.own_file
    return file.absolute().parent if file else user_folder("config", os.environ)


def _flags(settings: Settings) -> list[str]:
    """Return the options that make a command use this bot's settings in any folder."""
    usual = user_folder("config", os.environ) / NAME
    said = []
    if settings.own_file and settings.own_file.absolute() != usual:
        said.append(f" --config {shlex.quote(str(settings.own_file.absolute()))}")
    if settings.origin("data").kind in ("env", "flag"):
        said.append(f" --data {shlex.quote(str(settings.data.absolute()))}")
    return said
