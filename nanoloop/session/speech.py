"""The speakers in a message: its sender, and the people quoted, forwarded or overheard.

Messages stored by older versions lack this structure: each is one text by its sender, and is never
parsed.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal
from unicodedata import category, normalize

from nanoloop.messages import Quote, Speaker
from nanoloop.session.entry import APPROVAL, ERASED, Entry, plain_text

SPEECH = "speech"
"""The metadata key for a message's speech: its sender (`by`), other people's words (`quotes`), and
the effect on an earlier message (`change`).
"""
ORIGIN, GROUP, FILES = "origin", "group", "attachments"
"""The metadata keys for a message's origin, for chats with several people, and for the facts about
attachments.
"""

ERASED_QUOTE = "erased"
"""The key of a stored quote that was erased; it says neither what was said nor who said it."""
ERASED_WORDS = "(these words were erased)"
"""The text shown for a quote whose words were erased."""

Kind = Literal[
    "said", "quote", "forward", "overheard", "edit", "retraction", "report", "file", "unclear"
]
"""How a text became part of a message.

`unclear` marks a person's message stored by an older version, which may contain quotes and
overheard lines.
"""
NAME_CHARS = 40
"""How many characters of a name are shown."""
HANDLE_CHARS = 10
SOMEONE = "someone"
ME = "you"
"""The name shown for the bot itself; nobody else can have this name."""
_READ_CHARS = 200
_ROLES = frozenset({"assistant", "developer", "function", "model", "system", "tool", "user"})
_OURS = frozenset('|#:;,"`\\=*<>~^«»“”„‟\u2039\u203a')


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text within a message, together with its speaker."""

    kind: Kind
    text: str
    speaker: Speaker | None = None
    """The person who said the text, if known."""
    by: Speaker | None = None
    """The sender of the message that contains the text, if known."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The facts about a file."""
    files: tuple[str, ...] = ()
    """The kinds of files that were attached to an overheard message."""

    @property
    def is_typed(self) -> bool:
        """True if the message's sender is known to have typed the text."""
        return self.kind in {"said", "edit"}


def passages_of(entry: Entry) -> Iterator[Passage]:
    """Yield the texts in a message, in order; include the sender's own text even if empty."""
    by = speaker_of(entry)
    for quote in quotes_of(entry):
        yield Passage(
            kind=quote.kind, text=quote.text, speaker=quote.speaker, by=by, files=quote.files
        )
    kind = kind_of(entry)
    yield Passage(kind=kind, text="" if kind == "retraction" else typed(entry), speaker=by, by=by)
    for about, part in files_of(entry):
        if not isinstance(part, Mapping) or part.get("type") == "text":
            yield Passage(kind="file", text=file_text(about, part), by=by, about=about)


def kind_of(entry: Entry) -> Kind:
    """Return how the sender's own text became part of the message."""
    metadata = entry.metadata
    if ORIGIN in metadata and metadata[ORIGIN] == "system":
        return "report"
    if SPEECH in metadata and isinstance(speech := metadata[SPEECH], dict):
        change = speech.get("change")
        return change if change in {"edit", "retraction"} else "said"
    # Without these keys, it is a plain message that a person typed in an older version.
    is_old = metadata and (
        metadata.get("sender") or metadata.get(FILES) or metadata.get(ORIGIN) == "amendment"
    )
    return "unclear" if is_old and entry.role == "user" else "said"


def speaker_of(entry: Entry) -> Speaker | None:
    """Return the message's sender, or None if the message names none."""
    metadata = entry.metadata
    if SPEECH in metadata and isinstance(speech := metadata[SPEECH], dict):
        return speaker_in(speech.get("by"))
    name = metadata.get("sender")
    return Speaker(name=str(name)) if name else None


def sender_of(entry: Entry) -> tuple[str, str] | Any:
    """Return the sender's account, or the name if there is no account."""
    by = speaker_of(entry)
    return (by.platform, by.id) if by is not None and by.id else entry.metadata.get("sender")


def quotes_of(entry: Entry) -> Iterator[Quote]:
    """Yield other people's words in the message."""
    if SPEECH not in entry.metadata:
        return
    speech = entry.metadata[SPEECH]
    stored = speech.get("quotes") if isinstance(speech, dict) else None
    for quote in stored if isinstance(stored, list) else ():
        if isinstance(quote, Mapping):
            kind = quote.get("kind")
            files = quote.get("files")
            text = ERASED_WORDS if quote.get(ERASED_QUOTE) else str(quote.get("text") or "")
            yield Quote(
                text=text,
                speaker=speaker_in(quote.get("by")),
                kind=kind if kind in {"forward", "overheard"} else "quote",
                files=tuple(map(str, files)) if isinstance(files, list) else (),
            )


Person = tuple[str, str]
"""A person's account: the platform, and the person's id there."""


def person_in(stored: Any) -> Person | None:
    """Return a stored speaker's account; None for a speaker without one, and for the bot."""
    by = speaker_in(stored)
    return (by.platform, by.id) if by is not None and by.id and not by.is_me else None


def sender_in(metadata: Mapping[str, Any]) -> Person | None:
    """Return the account that sent the message, if its metadata names one."""
    speech = metadata.get(SPEECH)
    return person_in(speech.get("by")) if isinstance(speech, Mapping) else None


def stored_quotes(metadata: Mapping[str, Any]) -> list[Any]:
    """Return the stored form of a message's quotes from the message's metadata."""
    speech = metadata.get(SPEECH)
    quotes = speech.get("quotes") if isinstance(speech, Mapping) else None
    return quotes if isinstance(quotes, list) else []


def with_quotes(metadata: Mapping[str, Any], quotes: list[Any]) -> dict[str, Any]:
    """Return the metadata with these stored quotes."""
    return {**metadata, SPEECH: {**metadata[SPEECH], "quotes": quotes}}


def erased_quote(quote: Any) -> dict[str, Any]:
    """Return what remains of a stored quote whose words were erased."""
    kind = quote.get("kind") if isinstance(quote, Mapping) else None
    return {"kind": kind, ERASED_QUOTE: True}


def people_in(entry: Entry) -> list[Person]:
    """Return the people whose words a message contains: its sender, and anyone it quotes."""
    metadata = entry.metadata
    if entry.type == APPROVAL:  # what follows answers the asker too
        both = (sender_in(metadata), person_in(entry.content.get("asker")))
        return list(dict.fromkeys(person for person in both if person is not None))
    if SPEECH not in metadata:
        return []
    quoted = [person_in(q.get("by")) for q in stored_quotes(metadata) if isinstance(q, Mapping)]
    people = (sender_in(metadata), *quoted)
    return list(dict.fromkeys(person for person in people if person is not None))


def names_in(entry: Entry) -> dict[Person, str]:
    """Return the name of each person whose words a message contains."""
    speakers = (speaker_of(entry), *(quote.speaker for quote in quotes_of(entry)))
    return {(by.platform, by.id): name_of(by) for by in speakers if by and by.id and not by.is_me}


def without_words_of(entry: Entry, person: Person) -> Entry | None:
    """Return the entry without this person's words; None if the person sent it."""
    if sender_in(entry.metadata) == person:
        return None
    quotes = stored_quotes(entry.metadata)
    left = [erased_quote(q) if _is_of(q, person) else q for q in quotes]
    return replace(entry, metadata=with_quotes(entry.metadata, left)) if left != quotes else entry


def _is_of(quote: Any, person: Person) -> bool:
    return isinstance(quote, Mapping) and person_in(quote.get("by")) == person


@dataclass(frozen=True, slots=True)
class Askers:
    """The people whose words the answer of a log's newest turn may repeat.

    They are those who asked, and those whom they quoted, even if several messages are answered at
    once or join a running turn.
    """

    people: tuple[str, ...] = ()
    is_answered: bool = True

    def after(self, entry: Entry, people: Sequence[str]) -> Askers:
        """Return the people to consider after the next entry, which has these people's words."""
        if entry.role == "user" or (entry.type == APPROVAL and people):
            before = () if self.is_answered else self.people
            return Askers(tuple(dict.fromkeys((*before, *people))), is_answered=False)
        if entry.type == ERASED:
            return self
        return Askers(self.people, is_answered=entry.role == "assistant")


@dataclass(slots=True)
class ErasedWords:
    """The entries affected when a person's words are erased in a session."""

    gone: dict[int, Entry] = field(default_factory=dict)
    """The person's messages, and the answers to any message that quotes the person, by number."""
    left: dict[int, Entry] = field(default_factory=dict)
    """Other people's messages, by number, without their quotes of the person."""
    waiting: list[Entry] = field(default_factory=list)
    """The waiting messages that contain the person's words."""

    def take(self, entry: Entry, person: Person, *, is_answer: bool) -> None:
        """Record what happens to an entry; `is_answer` if it may repeat the person's words."""
        if entry.role == "user":
            left = without_words_of(entry, person)
            if left is None:
                self.gone[entry.seq] = entry
            elif left is not entry:
                self.left[entry.seq] = left
        elif is_answer and entry.type != ERASED:
            self.gone[entry.seq] = entry

    def __len__(self) -> int:
        """Return how many messages contained the person's words."""
        return len(self.gone) + len(self.left) + len(self.waiting)

    @property
    def seqs(self) -> set[int]:
        """The numbers of all affected log entries."""
        return {*self.gone, *self.left}


def speaker_in(stored: Any) -> Speaker | None:
    """Return the speaker from the stored form, or None."""
    if not isinstance(stored, Mapping):
        return None
    return Speaker(
        name=str(stored.get("name") or ""),
        id=str(stored.get("id") or ""),
        platform=str(stored.get("platform") or ""),
        is_me=stored.get("is_me") is True,
    )


def stored_speaker(speaker: Speaker, *, platform: str) -> dict[str, Any]:
    """Return a speaker's stored form; `platform` is the default for speakers without one."""
    known = {"id": speaker.id, "name": speaker.name[:_READ_CHARS]}
    known["platform"] = speaker.platform or platform
    return {name: value for name, value in known.items() if value} | (
        {"is_me": True} if speaker.is_me else {}
    )


def stored_quote(quote: Quote, *, platform: str) -> dict[str, Any]:
    """Return a quote's stored form."""
    stored: dict[str, Any] = {"kind": quote.kind, "text": quote.text}
    if quote.speaker is not None:
        stored["by"] = stored_speaker(quote.speaker, platform=platform)
    if quote.files:
        stored["files"] = list(quote.files)
    return stored


def typed(entry: Entry) -> str:
    """Return the text that the sender typed, without descriptions of attachments."""
    if FILES not in entry.metadata:
        return str(entry.content.get("text") or "")
    parts = entry.content.get("parts")
    files = len(entry.metadata.get(FILES) or ())
    if not files or not isinstance(parts, list):
        return str(entry.content.get("text") or "")
    return plain_text(parts[: max(0, len(parts) - files)])


def files_of(entry: Entry) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yield the facts about each attachment, with the message part that contains it."""
    if FILES not in entry.metadata:
        return
    files, parts = entry.metadata.get(FILES), entry.content.get("parts")
    if isinstance(files, list) and isinstance(parts, list) and len(files) <= len(parts):
        last = parts[len(parts) - len(files) :]
        for about, part in zip(files, last, strict=True):
            yield (about if isinstance(about, Mapping) else {}), part


def file_mark(about: Mapping[str, Any]) -> str:
    """Return the first line of a file's stored text: its kind, name, type and size."""
    size = about.get("size")
    known = (about.get("name"), about.get("mime_type"), size and f"{size} bytes")
    told = ", ".join(str(fact) for fact in known if fact)
    return f"[{about.get('kind')}: {told or about.get('ref')}]"


def file_text(about: Mapping[str, Any], part: Any) -> str:
    """Return a file's readable text, without its first line."""
    text = part.get("text") if isinstance(part, Mapping) else part
    text, mark = text if isinstance(text, str) else "", file_mark(about)
    return text.removeprefix(mark).removeprefix("\n") if text.startswith(mark) else text


def other_words(entry: Entry) -> str:
    """Return other people's words in a message, without names; usually ""."""
    if not isinstance(entry.metadata.get(SPEECH), Mapping):
        return ""
    return "\n".join(quote.text for quote in quotes_of(entry))


def is_told_apart(entry: Entry) -> bool:
    """Return True if the model must be told who spoke; not for a lone user's plain message."""
    metadata = entry.metadata
    if SPEECH not in metadata and GROUP not in metadata and ORIGIN not in metadata:
        return False  # the usual case, checked for every entry in every request
    speech = metadata.get(SPEECH)
    is_more = isinstance(speech, dict) and bool(speech.get("quotes") or speech.get("change"))
    return is_more or bool(metadata.get(GROUP)) or metadata.get(ORIGIN) == "system"


def for_people(entry: Entry) -> str:
    """Return a message's quotes followed by its text, as exports show them."""
    told = (_quoted(name_of(quote.speaker), quote.text) for quote in quotes_of(entry))
    return "\n\n".join((*told, str(entry.content.get("text") or "")))


def _quoted(name: str, text: str) -> str:
    named = f"{name}: {text}" if name else text
    return "\n".join(f"> {line}" for line in named.splitlines())


def name_of(speaker: Speaker | None) -> str:
    """Return a speaker's name as people see it, or ""."""
    return "" if speaker is None else display_name(speaker.name or speaker.id)


def who(speaker: Speaker | None, otherwise: str = SOMEONE) -> str:
    """Return a speaker's name as models see it, with a handle if the platform gave an id."""
    if speaker is None:
        return otherwise
    if speaker.is_me:
        return ME
    name = name_of(speaker) or SOMEONE
    return f"{name} #{handle_of(speaker.platform, speaker.id)}" if speaker.id else name


@lru_cache(maxsize=4096)
def display_name(name: str) -> str:
    """Return a name in a safe form to show: one short line that can't pass for a mark or role.

    Different people may be shown with the same name, but their handles differ.
    """
    visible = "".join(c for c in name[:_READ_CHARS] if category(c) not in _UNSEEN)
    plain = "".join(map(_shown, normalize("NFKC", visible)))
    words = " ".join(plain.split())[:NAME_CHARS].split()
    shown = " ".join(word for word in words if not _is_role(word))
    return "" if shown.casefold() == ME else shown


_UNSEEN = frozenset({"Cf", "Cs", "Co", "Cn"})
_SPACES = frozenset({"Cc", "Zs", "Zl", "Zp", "Ps", "Pe"})


def _shown(character: str) -> str:
    kind = category(character)
    if kind in _UNSEEN:
        return ""
    return " " if kind in _SPACES or character in _OURS else character


def _is_role(word: str) -> bool:
    return "".join(filter(str.isalpha, word.casefold())) in _ROLES


@lru_cache(maxsize=4096)
def handle_of(platform: str, person: str) -> str:
    """Return ten letters and digits that identify an account, the same on every machine."""
    named = f"{platform}\0{person}".encode("utf-8", "surrogatepass")
    digest = blake2b(named, digest_size=8, person=b"nanoloop speaker").digest()
    return b32encode(digest).decode().lower()[:HANDLE_CHARS]
