"""How often a search brings the answer among its first 10 hits, and what it takes in a long chat.

    python -m tests.bench.recall [MESSAGES]

The chats are made up (chats.py), so the shares compare ways of searching under one condition and
say nothing of real talk. The times are of `Recall.search` whole, over a JSONL store.
"""

from __future__ import annotations

import random
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from nanoloop.memory import ranking
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.memory.terms import pairs_of
from nanoloop.session.entry import Entry
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from tests.bench.chats import Chat, chinese, english
from tests.bench.report import Report

FIRST = 10
SEEDS = range(4)
SEARCHES = 400
VARIANTS = {
    "no neighbours": {"BESIDE": dict.fromkeys(ranking.BESIDE, 0.0), "ASKED": 0.0},
    "no speakers": {"SPOKEN": 1.0, "NAMED": 1.0, "MEANT": 1.0},
    "no coverage": {"COVERED": 0.0},
    "no kinds of turns": {"ASKING": 1.0, "FITTING": 1.0, "DATED": 1.0},
    "no length": {"LENGTH": 0.0},
}

Finds = Callable[[Chat, str], list[int]]


def plain(chat: Chat, tokenizer: str, split: Callable[[str], str] = str) -> Finds:
    """Full-text search as it comes: one row a turn, any of the words, BM25."""
    database = sqlite3.connect(":memory:")
    database.execute(f"CREATE VIRTUAL TABLE said USING fts5(words, tokenize='{tokenizer}')")
    rows = [(place, split(f"{who}: {text}")) for place, (who, text) in enumerate(chat.turns)]
    database.executemany("INSERT INTO said(rowid, words) VALUES (?, ?)", rows)
    sql = f"SELECT rowid FROM said WHERE said MATCH ? ORDER BY bm25(said) LIMIT {FIRST}"

    def find(_: Chat, question: str) -> list[int]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", split(question)))
        return [row[0] for row in database.execute(sql, (words,))]

    return find


def pairs(text: str) -> str:
    """Every two signs that stand side by side."""
    runs = re.findall(r"[\u4e00-\u9fff]+|\w+", text)
    return " ".join(word for run in runs for word in (pairs_of(run) or [run]))


def entry(who: str, text: str) -> Entry:
    """A turn as a channel would have it kept."""
    if who in {"user", "assistant"}:
        return Entry.message(who, text)
    return Entry.message("user", text, metadata={"sender": who})


async def found(chats: Sequence[Chat]) -> float:
    """The share of questions whose answer recall brings."""
    hits = count = 0
    for number, chat in enumerate(chats):
        store = InMemoryStore()
        session = await store.create(id=str(number))
        for turn in chat.turns:
            session.add_entry(entry(*turn))
        await store.save(session)
        recall = Recall(store, Index(None))
        for question, answers in chat.questions:
            got = {hit.seq - 1 for hit in await recall.search(session, question, FIRST)}
            hits += not got.isdisjoint(answers)
            count += 1
    return hits / count


def found_plainly(chats: Sequence[Chat], tokenizer: str, split: Callable[[str], str]) -> float:
    """The same for full-text search as it comes."""
    hits = count = 0
    for chat in chats:
        find = plain(chat, tokenizer, split)
        for question, answers in chat.questions:
            hits += not set(find(chat, question)).isdisjoint(answers)
            count += 1
    return hits / count


async def quality(report: Report) -> None:
    """Ways of searching side by side, and what each part of the ranking brings."""
    talks = [english(seed) for seed in SEEDS], [chinese(seed) for seed in SEEDS]
    rows = [
        (name, *(_share(found_plainly(talk, tokenizer, split)) for talk in talks))
        for name, tokenizer, split in (
            ("unicode61", "unicode61", str),
            ("porter", "porter", str),
            ("pairs of signs", "unicode61", pairs),
        )
    ]
    rows.append(("recall", *[_share(await found(talk)) for talk in talks]))
    for name, values in VARIANTS.items():
        kept = {key: getattr(ranking, key) for key in values}
        for key, value in values.items():
            setattr(ranking, key, value)
        rows.append((f"  with {name}", *[_share(await found(talk)) for talk in talks]))
        for key, value in kept.items():
            setattr(ranking, key, value)
    counts = [sum(len(chat.questions) for chat in talk) for talk in talks]
    title = f"answer among the first {FIRST}, % of made-up questions"
    report.table(
        title, ["", *(f"{n} {c}" for n, c in zip(("en", "zh"), counts, strict=True))], rows
    )


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def long_talk(count: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Turns of both languages and of words as rare as in real text, and what to look for."""
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(20_000)]
    weights = [1 / (rank + 1) ** 0.9 for rank in range(len(words))]
    chats = english(1, turns=count // 4), chinese(1, turns=count // 4)
    rest = [
        ("Jon", " ".join(chance.choices(words, weights, k=20)))
        for _ in range(count - sum(len(chat.turns) for chat in chats))
    ]
    turns = [turn for chat in chats for turn in chat.turns] + rest
    chance.shuffle(turns)
    asked = [question for chat in chats for question, _ in chat.questions[: SEARCHES // 4]]
    asked += [" ".join(chance.choices(words, weights, k=6)) for _ in range(SEARCHES // 2)]
    return turns, asked


async def speed(report: Report, count: int) -> None:
    """One session of so many messages: taking it in, and searching it."""
    turns, asked = long_talk(count)
    with tempfile.TemporaryDirectory() as name:
        store = JsonlStore(Path(name) / "sessions")
        session = await store.create(id="s")
        for start in range(0, len(turns), 500):
            for turn in turns[start : start + 500]:
                session.add_entry(entry(*turn))
            session.trim_if_needed(50, 10)
            await store.save(session)
            session.release()
        file = Path(name) / "recall.sqlite"
        index = Index(file)
        recall = Recall(store, index)
        begun = time.perf_counter()
        await recall.catch_up(session)
        taken_in = time.perf_counter() - begun
        await recall.search(session, "warm up")
        taken = sorted([await _milliseconds(recall, session, words) for words in asked])
        index.close()
        size = file.stat().st_size / 1e6
        await store.close()
    p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
    columns = ["messages", "taken in, s", "index, MB", "p50, ms", "p99, ms", "longest, ms"]
    values = [len(turns), f"{taken_in:.1f}", f"{size:.0f}", f"{p50:.2f}", f"{p99:.2f}"]
    report.table("one long session", columns, [[*values, f"{taken[-1]:.2f}"]])
    report.goal("search, p50", p50, 5, " ms")
    report.goal("search, p99", p99, 10, " ms")


async def _milliseconds(recall: Recall, session: object, words: str) -> float:
    begun = time.perf_counter()
    await recall.search(session, words, FIRST)  # type: ignore[arg-type]
    return (time.perf_counter() - begun) * 1000


async def main(count: int) -> None:
    """Print both tables."""
    report = Report("recall: what is found, and how fast")
    await quality(report)
    await speed(report, count)
    report.end()


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
