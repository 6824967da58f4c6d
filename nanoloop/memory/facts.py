"""Exact details, such as numbers and names, which are kept in full beside the summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.session.digest import Quotes, source_of
from nanoloop.session.entry import Entry
from nanoloop.session.speech import passages_of

Item = dict[str, Any]

DECISION = "decision"
LEDGER_ITEMS = 60
"""How many names, dates, numbers and other items are kept in full beside the summary."""
LEDGER_CHARS = 3000
"""The maximum total number of characters in the ledger's items."""
WORTH = {"money": 40, "date": 40, "file": 60, "link": 60, "id": 80, "contact": 120}
"""The bonus for each kind of item: it ranks as if it were newer by this many entries."""
USER_WORTH = 40
REPEATED_WORTH = 20
"""The bonus for each of up to ten repetitions, again as a number of entries."""
PER_MESSAGE = 12
"""How many items one message may add, so that a list of numbers can't displace all others."""


def found_in(entry: Entry) -> list[Item]:
    """Return the exact words of a user or assistant that must not be paraphrased, oldest first."""
    if entry.role not in {"user", "assistant"}:
        return []
    found: dict[tuple[str, str], Item] = {}
    for said in sorted(passages_of(entry), key=lambda one: not one.is_typed):
        source = source_of(said, entry)
        # Only typed text can mark a decision; quotes, overheard lines and files can't.
        for exact in exact_in(said.text, by_user=said.is_typed and entry.role == "user"):
            found.setdefault((exact.kind, exact.text), _item(exact, source, entry.seq))
    return _best(list(found.values()), PER_MESSAGE)


def merged(
    before: Iterable[Mapping[str, Any]],
    found: Iterable[Mapping[str, Any]],
    *,
    items: int = LEDGER_ITEMS,
    chars: int = LEDGER_CHARS,
) -> Quotes:
    """Add later items to the ledger, without duplicates and within its limits."""
    known: dict[tuple[str, str, str], Item] = {}
    for item in (*before, *found):
        # A later quote of typed text never replaces it.
        key = (str(item["kind"]), str(item["text"]).casefold(), str(item.get("how", "")))
        said = known.pop(key, None)
        known[key] = {**item, "count": int(item["count"]) + (int(said["count"]) if said else 0)}
    kept = _best(list(known.values()), items)
    while kept and sum(_size(item) for item in kept) > chars:
        kept.remove(min(kept, key=_worth))
    return tuple(kept)


def _item(exact: Exact, source: Mapping[str, Any], seq: int) -> Item:
    near = {} if exact.near == exact.text else {"near": exact.near}
    return {"kind": exact.kind, "text": exact.text, **near, **source, "seq": seq, "count": 1}


def _best(items: Sequence[Item], limit: int) -> list[Item]:
    """Return the best items up to the limit, in their original order."""
    if len(items) <= limit:
        return list(items)
    ranked = sorted(range(len(items)), key=lambda index: _worth(items[index]), reverse=True)
    return [items[index] for index in sorted(ranked[:limit])]


def _worth(item: Mapping[str, Any]) -> tuple[bool, int]:
    kind = str(item["kind"])
    worth = WORTH.get(kind, 0)
    worth += 0 if item["who"] == "assistant" or item.get("how") else USER_WORTH
    worth += REPEATED_WORTH * min(int(item["count"]) - 1, 10)
    return kind == DECISION, int(item["seq"]) + worth


def _size(item: Mapping[str, Any]) -> int:
    return len(str(item.get("near") or item["text"])) + len(str(item["who"])) + 20


SCANNED = 8000
"""How many characters of a text are scanned; longer texts were probably pasted."""
NEAR = 30
"""How many characters before and after a match are shown."""
DECISION_LIMIT = 200
"""How many characters of a marked line are kept."""

_MARKS = (
    "remember|decision|decided|agreed|important|merke?|merk dir|entscheidung|entschieden|beschluss"
    "|wichtig|souviens-toi|retiens|décision|décidé|important|recuerda|decisión|importante|lembre"
    "|lembra|decisão|ricorda|decisione|onthoud|besluit|belangrijk|kom ihåg|beslut|husk|beslutning"
    "|muista|päätös|zapamiętaj|decyzja|ważne|pamatuj|rozhodnutí|запомни|помни|решение|важно"
    "|запам'ятай|рішення|unutma|karar|önemli|تذكر|قرار|مهم|זכור|החלטה|याद रखो|निर्णय"
    "|ghi nhớ|quyết định|ingat|keputusan|จำไว้|记住|記住|决定|決定|重要"
    "|覚えて|覚えておいて|기억해|결정|중요"
)
_DECISION = re.compile(
    rf"^[ \t>*-]{{0,8}}(?:{_MARKS})(?: that)?\**[ \t]{{0,2}}"
    r"[:：][ \t*]*(?=\S)(?P<what>[^\n]+)",  # noqa: RUF001 - Chinese has its own colon
    re.IGNORECASE | re.MULTILINE,
)

_MONTH = (
    r"(?i:jan(?:uary|uar|vier)?|feb(?:ruary|ruar)?|mar(?:ch|s|zo)?|märz|apr(?:il)?|ma[iy]|jun[ei]?"
    r"|jul[iy]?|aug(?:ust)?|sep(?:t(?:ember|embre)?)?|o[ck]t(?:ober|obre)?|nov(?:ember|embre)?"
    r"|de[cz](?:ember)?|enero|febrero|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre"
    r"|diciembre|février|avril|juin|juillet|août|décembre)\b\.?"
)
_UNIT = (
    r"(?:%|°[CF]?|[kcmµn]?m|km/h|mph|[kmµ]?g|lbs?|oz|[mc]?l|[kMG]?W|kWh|V|A|[kKMGT]i?B|[kMG]?bps"
    r"|[kMG]?Hz|ms|s|sec(?:onds?)?|min(?:utes?|uten)?|h|hrs?|hours?|stunden?|days?|tagen?|weeks?"
    r"|wochen?|months?|monate?n?|years?|jahren?|miles?|ft|people|persons?|personen|pages?|px|pcs)"
)
_EAST_UNIT = (
    r"(?:公里|千米|厘米|毫米|平方米|米|公斤|千克|克|斤|升|毫升|度|岁|歳|살|年|个月|個月|个星期|周|天|日"
    r"|小时|小時|時間|시간|分钟|分鐘|分|秒|人|名|명|个|個|개|次|回|页|頁|台|件|％)"  # noqa: RUF001 - the Chinese percent sign
)
_EAST_MONEY = r"(?:万元|亿元|萬元|元|块钱|块|人民币|美元|欧元|日元|万円|円|만원|원)"
_CURRENCY = r"(?:USD|EUR|GBP|CHF|JPY|CNY|RMB|INR|AUD|CAD|SEK|PLN|BRL|[€$£¥₹₩₽]|euros?|dollars?)"
_NUMBER = r"\d{1,15}(?:[.,' ]\d{3}){0,4}(?:[.,]\d{1,6})?"
_EAST_DIGITS = r"[\d一二三四五六七八九十]{1,3}"
_EAST_NUMBER = rf"(?:{_NUMBER}|[一二两三四五六七八九十百千万]{{1,9}})"
_ENDING = (
    r"(?:pdf|docx?|xlsx?|pptx?|od[tsp]|csv|tsv|json|ya?ml|toml|xml|txt|md|rst|tex|html?|css|jsx?"
    r"|tsx?|py|ipynb|go|rs|cc?|cpp|h|java|kt|swift|rb|php|sh|sql|log|ini|cfg|conf|env|lock|jpe?g"
    r"|png|gif|svg|webp|heic|mp[34]|wav|m4a|mov|zip|t?gz|tar|7z|iso|exe|apk|db|sqlite3?)"
)

_KINDS = {
    "link": r"\b(?:https?://|www\.)[^\s<>\"'`）」】]{3,300}",  # noqa: RUF001 - where a link ends in Chinese
    "contact": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}"
    r"|(?<![\w+])(?:\+\d{1,3}[ ./-]?|0|\()\(?\d{1,5}\)?(?:[ ./-]?\d{2,5}){2,5}(?![\w.-]\d)",
    "date": rf"(?<![\w.-])\d{{4}}-\d{{2}}-\d{{2}}(?:[T ]\d{{2}}:\d{{2}}(?::\d{{2}})?Z?)?(?!\w)"
    rf"|(?<![\w.])\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}(?![\w])"
    rf"|\b\d{{1,2}}(?:st|nd|rd|th|\.)?\ (?:of\ |de\ )?{_MONTH}(?:,?\ (?:de\ )?\d{{4}})?\b"
    rf"|\b{_MONTH}\ \d{{1,2}}(?:st|nd|rd|th)?(?:,?\ \d{{4}})?(?![\w:])"
    rf"|(?:\d{{2,4}}[年년]\ ?)?{_EAST_DIGITS}[月월]\ ?{_EAST_DIGITS}[日号號일]"
    r"|\d{4}年\d{1,2}月"
    r"|(?:[上下]午|[早晚]上|午前|午後|오전|오후)?"
    rf"\ ?{_EAST_DIGITS}[点點時시](?:\d{{1,2}}分|半)?(?!间|間)"
    r"|(?<![\w:.])\d{1,2}:\d{2}(?::\d{2})?(?:\ ?(?i:[ap]\.?m)\b\.?)?(?![\w:])"
    r"|\b\d{1,2}\ ?(?i:[ap]m)\b"
    r"|\b\d{1,2}(?:[.:]\d{2})?\ Uhr\b",
    "id": r"\b[A-Z]{2}\d{2}(?:\ ?[A-Z0-9]{4}){3,7}(?:\ ?[A-Z0-9]{1,3})?\b"
    r"|(?<![\w.])v?\d{1,5}(?:\.\d{1,5}){2,3}(?![\w.]?\d)"
    r"|(?<![\w-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![\w-])"
    r"|(?<![\w-])[A-Z][A-Z0-9]{1,9}-\d{1,9}(?![\w-])|(?<!\w)\#\d{2,9}\b"
    r"|(?<![\w-])(?=[A-Z0-9]{0,30}\d)(?=[A-Z0-9]{0,30}[A-Z])[A-Z0-9]{6,32}(?![\w-])"
    r"|(?<![\w-])(?=[0-9a-f]{0,40}\d)(?=[0-9a-f]{0,40}[a-f])[0-9a-f]{7,40}(?![\w-])",
    "file": rf"(?<![\w./\\-])(?:[A-Z]:\\|~?/|\.{{1,2}}/)?(?:[\w.@-]{{1,64}}[/\\]){{0,12}}"
    rf"[\w@-][\w.@-]{{0,80}}\.{_ENDING}(?![\w-])"
    r"|(?<![\w./:~<-])~?/(?:[\w.@-]{1,64}/){1,12}[\w.@-]{0,64}",
    "money": rf"(?:[$€£¥₹₩₽]|\b(?:USD|EUR|GBP|CHF|RMB)\ )\ ?{_NUMBER}"
    r"(?:\ ?(?:k|m|bn|mio|million)\b)?"
    rf"|(?<![\w.,]){_NUMBER}\ ?(?:k\ |m\ |mio\.?\ |million\ )?{_CURRENCY}(?!\w)"
    rf"|{_EAST_NUMBER}{_EAST_MONEY}",
    "number": rf"(?<![\w.,]){_NUMBER}\ ?{_UNIT}(?!\w)|{_EAST_NUMBER}\ ?{_EAST_UNIT}"
    r"|(?<![\w.,:/-])\d{4,15}(?![\w:/-])",
    "quote": r"[\"“„]\S[^\"“”„\n]{1,78}[\"”“]|«[^»\n]{2,80}»|`[^`\n]{2,80}`"
    r"|「[^」\n]{2,80}」|『[^』\n]{2,80}』",
}
_EXACT = re.compile("|".join(f"(?P<{kind}>{form})" for kind, form in _KINDS.items()))
_HINT = re.compile(r"[\d\"“„«`「『@~/\\一二两三四五六七八九十百千万]|[.]\S")
"""A quick first check: it matches some part of everything `_EXACT` matches, but few other lines."""
_SECRET = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|xox[abp]|glpat|hf|AKIA|eyJ)[-_A-Za-z0-9]{8,}"
    r"|(?:passwor[dt]|passwort|token|secret|api[ _-]?key|密码|パスワード|пароль)"
    r"[ \t\"']{0,3}(?:[:=：]|is\b|lautet\b|是)",  # noqa: RUF001 - Chinese has its own colon
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """A match, exactly as it appears in the text."""

    kind: str
    text: str
    near: str
    """The match with a few words around it."""


def exact_in(text: str, *, by_user: bool = True) -> Iterator[Exact]:
    """Yield every part that must not be paraphrased, in order; only users can mark decisions.

    Lines that seem to contain a password or key are skipped, and so is the middle of a text longer
    than `SCANNED` characters.
    """
    for line in _scanned(text).splitlines():
        marked = _DECISION.match(line) if by_user else None
        if not (marked or _HINT.search(line)) or _SECRET.search(line):
            continue
        if marked:
            said = _shortened(marked["what"].strip(" *"))
            yield Exact(kind="decision", text=said, near=said)
        else:
            yield from _found_in(line)


def _scanned(text: str) -> str:
    half = SCANNED // 2
    return text if len(text) <= SCANNED else f"{text[:half]}\n{text[-half:]}"


def _found_in(line: str) -> Iterator[Exact]:
    for found in _EXACT.finditer(line):
        kind, text = str(found.lastgroup), found[0].strip()
        if kind == "quote" and (within := _kind_within(text[1:-1])):
            kind, text = within, text[1:-1]
        if kind in {"link", "file"}:
            text = text.rstrip(".,;:!?)]、。，")  # noqa: RUF001 - Chinese punctuation
        yield Exact(kind=kind, text=text, near=_near(line, found.start(), found.end()))


def _kind_within(quoted: str) -> str | None:
    whole = _EXACT.fullmatch(quoted)
    return whole.lastgroup if whole else None


def _near(line: str, start: int, end: int) -> str:
    """Return the match with whole words around it."""
    first, last = max(0, start - NEAR), end + NEAR
    before, after = line[first:start], line[end:last]
    if first and " " in before:
        before = before[before.index(" ") + 1 :]
    if last < len(line) and " " in after:
        after = after[: after.rindex(" ")]
    return " ".join(f"{before}{line[start:end]}{after}".split())


def _shortened(text: str) -> str:
    return text if len(text) <= DECISION_LIMIT else f"{text[:DECISION_LIMIT]}…"
