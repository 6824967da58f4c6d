"""A session's settings, which decide when it is resized."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from nanoloop.session.entry import copied

LITE, MEMO = "lite", "memo"
DEFAULT_CHARS = 12_000
DEFAULT_TURNS = 8
DEFAULTS: Mapping[str, Any] = {
    "mode": LITE,
    "limit": {},
    "resize": {
        "every_n_turns": DEFAULT_TURNS,
        "max_messages_text_length": DEFAULT_CHARS,
        "max_keep_messages_count": None,
    },
    "memo": {
        "instruct": [
            "Keep the memo of a conversation up to date: facts, names, decisions, open questions.",
            "Take in what the new messages and attachments add; correct what they correct.",
            "Keep what still holds, drop what no longer matters, and stay brief.",
            'Answer with one JSON object and nothing else: {"memo": {...}}.',
        ],
    },
}
UNLIMITED: Mapping[str, Any] = {**DEFAULTS, "resize": dict.fromkeys(DEFAULTS["resize"])}
"""The defaults, without any limit, so that a resize happens only if a limit is set."""
LEGACY = ("session.resize.max_current_chars", "session.resize.keep_last_messages")
_SECRET_NAME = re.compile(
    r"(^|[_\-])(key|apikey|secret|token|password|passwd|passphrase|credentials?|authorization)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"(sk-|ghp_|xox[abp]-|Bearer )\S")
Tree = dict[str, Any]


class Options(MutableMapping[str, Any]):
    """A session's settings: a mapping with dotted keys that also accepts nested mappings."""

    def __init__(
        self,
        parent: Mapping[str, Any] | None = None,
        *,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._own: Tree = {}
        self._parent: Mapping[str, Any] = {}
        self._defaults = DEFAULTS
        self._changed = changed
        self._has_warned = False
        self.inherit(parent or {})

    def inherit(self, parent: Mapping[str, Any], *, defaults: Mapping[str, Any] = DEFAULTS) -> None:
        """Use this mapping, nested or dotted, for every setting not made here."""
        self._parent = parent
        self._defaults = defaults
        self._warn_of_legacy(_tree_of(parent))

    @property
    def parent(self) -> Mapping[str, Any]:
        """The settings used for everything that is not set here."""
        return self._parent

    @property
    def is_set(self) -> bool:
        """True if anything is set, here or in the parent."""
        return bool(self._own or self._parent)

    def __getitem__(self, key: str) -> Any:
        found: Any = self._effective()
        for name in _path(key):
            if not isinstance(found, Mapping) or name not in found:
                raise KeyError(key)
            found = found[name]
        return copied(found)

    def __setitem__(self, key: str, value: Any) -> None:
        if key.partition(".")[0] != "session":
            raise KeyError(f"{key!r} is not a session setting: those begin with 'session.'")
        tree = _tree_of({key: value})
        self._warn_of_legacy(tree)
        _cut_out(self._own, _path(key))
        self._own = _merged(self._own, tree)
        self._changed()

    def __delitem__(self, key: str) -> None:
        if not _cut_out(self._own, _path(key)):
            raise KeyError(key)
        self._changed()

    def __iter__(self) -> Iterator[str]:
        return (f"session.{key}" for key in _leaves(self._effective()))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def set(self, key: str, value: Any) -> None:
        """Set one key, like `options[key] = value`."""
        self[key] = value

    def configure(
        self,
        *,
        mode: str | None = None,
        limit: Mapping[str, Any] | None = None,
        every_n_turns: Any = None,
    ) -> None:
        """Set the most common options; limits set by earlier calls are kept."""
        if mode is not None:
            if mode not in (LITE, MEMO):
                raise ValueError(f"{mode!r} is not a session mode: use {LITE!r} or {MEMO!r}")
            self["session.mode"] = mode
            self["session.memo.enabled"] = mode == MEMO
        for name, value in (limit or {}).items():
            self[f"session.limit.{name}"] = value
        if every_n_turns is not None:
            self["session.resize.every_n_turns"] = every_n_turns

    # The effective values

    @property
    def chars(self) -> int:
        """The maximum number of characters in the window; 0 means no limit."""
        return self._limit("chars", "max_messages_text_length", unreadable=DEFAULT_CHARS)

    @property
    def messages(self) -> int:
        """How many messages a resize keeps; 0 means no limit."""
        return self._limit("messages", "max_keep_messages_count", unreadable=0)

    @property
    def every_n_turns(self) -> int:
        """The number of turns between two resizes; 0 turns this rule off."""
        return _count(self["session.resize.every_n_turns"], unreadable=DEFAULT_TURNS)

    def _limit(self, name: str, detailed: str, *, unreadable: int) -> int:
        limit = self["session.limit"]
        value = limit.get(name) if isinstance(limit, Mapping) else None
        if value is None:
            value = self[f"session.resize.{detailed}"]
        return _count(value, unreadable=unreadable)

    @property
    def memo_enabled(self) -> bool:
        """True if a memo is kept, according to the explicit setting or else the mode."""
        return bool(self["session.memo.enabled"])

    @property
    def instruct(self) -> str:
        """The instructions for the model that updates the memo."""
        lines = self["session.memo.instruct"]
        return lines if isinstance(lines, str) else "\n".join(str(line) for line in lines or ())

    # Copies and exports

    def snapshot(self) -> Options:
        """Return an independent copy of the settings."""
        alone = Options()
        alone._has_warned = True
        alone.inherit({"session": self.explicit()}, defaults=self._defaults)
        return alone

    def explicit(self) -> Tree:
        """Return everything set here or in the parent, nested, without the defaults."""
        return _merged(_tree_of(self._parent), self._own)

    def exported(self) -> Tree:
        """Return the settings like `explicit`, without anything that looks like a secret."""
        return {"session": _without_secrets(self.explicit())}

    def own(self) -> Tree:
        """Return everything set here, nested."""
        return _merged(self._own)

    def replace(self, tree: Mapping[str, Any]) -> None:
        """Replace all settings made here, without reporting a change."""
        self._own = _merged(tree)

    def _effective(self) -> Tree:
        tree = _merged(self._defaults, self.explicit())
        memo = tree["memo"] if isinstance(tree.get("memo"), dict) else {}
        if _truth(memo.get("enabled")) is None:
            memo["enabled"] = tree.get("mode") == MEMO
        else:
            memo["enabled"] = _truth(memo["enabled"])
        return {**tree, "memo": memo}

    def _warn_of_legacy(self, tree: Tree) -> None:
        found = [key for key in LEGACY if key.removeprefix("session.") in set(_leaves(tree))]
        if found and not self._has_warned:
            self._has_warned = True
            text = f"{', '.join(found)}: no longer used; set session.limit instead"
            warnings.warn(text, DeprecationWarning, stacklevel=4)


def _path(key: str) -> list[str]:
    """Return the names in a dotted key, without `session`."""
    names = key.split(".")
    return names[1:] if names[0] == "session" else [key]


def _tree_of(settings: Mapping[str, Any]) -> Tree:
    """Return the session settings of a dotted or nested mapping as a tree."""
    tree: Tree = {}
    for key, value in settings.items():
        if key == "session" and isinstance(value, Mapping):
            tree = _merged(tree, _tree_of({f"session.{k}": v for k, v in value.items()}))
        elif isinstance(key, str) and key.startswith("session."):
            for name in reversed(key.split(".")[1:]):
                value = {name: value}  # noqa: PLW2901 - from the leaf up to the root
            tree = _merged(tree, value)
    return tree


def _merged(*trees: Mapping[str, Any]) -> Tree:
    """Merge these trees into one; later trees take priority over earlier ones."""
    result: Tree = {}
    for tree in trees:
        for name, value in tree.items():
            if isinstance(value, Mapping):
                below = result.get(name)
                result[name] = _merged(below if isinstance(below, Mapping) else {}, value)
            else:
                result[name] = copied(value)
    return result


def _cut_out(tree: Tree, path: list[str]) -> bool:
    if not path:
        tree.clear()
        return True
    for name in path[:-1]:
        if not isinstance(tree.get(name), dict):
            return False
        tree = tree[name]
    if path[-1] not in tree:
        return False
    del tree[path[-1]]
    return True


def _leaves(tree: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from (f"{name}.{below}" for below in _leaves(value))
        else:
            yield name


def _without_secrets(tree: Mapping[str, Any]) -> Tree:
    return {
        name: _without_secrets(value) if isinstance(value, Mapping) else value
        for name, value in tree.items()
        if not _SECRET_NAME.search(name)
        and not (isinstance(value, str) and _SECRET_VALUE.match(value))
    }


def _count(value: Any, *, unreadable: int) -> int:
    """Return a limit as a number; None, zero or less becomes 0, which means no limit."""
    if value is None:
        return 0
    try:
        return max(0, unreadable if isinstance(value, bool) else int(value))
    except (TypeError, ValueError, OverflowError):
        return max(0, unreadable)


def _truth(value: Any) -> bool | None:
    """Return True or False, or None if unset; words such as "yes" and "off" are accepted too."""
    if isinstance(value, str):
        return value.strip().lower() in {"true", "1", "yes", "on"} if value.strip() else None
    return None if value is None else bool(value)
