"""How sensible a conversation with a model is: ten fixed questions, each answer judged by a rule.

    python -m tests.bench.questions [--model NAME] [--runs 3] [--show]

They are typed into `nanoloop` as README's first command starts it: at a terminal, in a fresh home,
with the model that it takes there and its small first window, so that the last ones need the
memory. Each answer must also come within 20 seconds and not repeat itself. The goal is 7 of 10 in
each run for a model that packages give, 9 (`--goal 9`) for a server's or a hub's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from tests.bench.report import Report, say
from tests.stages.command_line import CommandLine, Terminal, ended
from tests.stages.local_model import FOLDER, USEFUL, model_file

MOST_SECONDS = 20
FIRST_SECONDS = 60
MOST_WAITED_SECONDS = 300
GOAL = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    is_good: Callable[[str], bool]


def has(*signs: str) -> Callable[[str], bool]:
    """All of these are in it, in any case."""
    return lambda answer: all(sign.casefold() in answer.casefold() for sign in signs)


def knows(sign: str) -> Callable[[str], bool]:
    """This is in it, and not as what the model says of itself."""
    own = re.compile(rf"\b(?:I am|I'm|I live in|my name is) {sign}", re.IGNORECASE)
    return lambda answer: sign in answer and not own.search(answer)


def is_bullets(count: int) -> Callable[[str], bool]:
    """Exactly so many lines, and each begins as one of a list does."""
    item = re.compile(r"([-*•]|\d+[.)])\s+\S")

    def is_good(answer: str) -> bool:
        lines = [line.strip() for line in answer.splitlines() if line.strip()]
        return len(lines) == count and all(map(item.match, lines))

    return is_good


def is_german_with(sign: str) -> Callable[[str], bool]:
    german = re.compile(r"\b(die|der|das|ist|von)\b", re.IGNORECASE)
    english = re.compile(r"\b(the|is|of)\b", re.IGNORECASE)
    return lambda answer: bool(
        sign in answer and german.search(answer) and not english.search(answer)
    )


def reverses(answer: str) -> bool:
    """The code in it runs, and its function does what was asked."""
    found = re.search(r"```(?:python)?\n(.*?)```", answer, re.DOTALL)
    code = found[1] if found else answer
    test = f"{code}\nassert reverse('Lisbon') == 'nobsiL'"
    done = subprocess.run([sys.executable, "-I", "-c", test], capture_output=True, check=False)
    return done.returncode == 0


def has_sentences(count: int) -> Callable[[str], bool]:
    return lambda answer: len(re.findall(r"[.!?](?=\s|$)", answer.strip())) == count


QUESTIONS = (
    Question(text="Hi! I am Mira and I live in Lisbon.", is_good=knows("Mira")),
    Question(text="What is the capital of Australia?", is_good=has("Canberra")),
    Question(
        text="Name three benefits of walking. Three bullets, nothing else.", is_good=is_bullets(3)
    ),
    Question(text="What is my name?", is_good=knows("Mira")),
    Question(text="Wie heißt die Hauptstadt von Österreich?", is_good=is_german_with("Wien")),
    Question(
        text="Write a Python function reverse(text) that returns the text reversed.",
        is_good=reverses,
    ),
    Question(text="What is 17 + 25?", is_good=has("42")),
    Question(
        text='How do you say "Good morning, my friend" in French?', is_good=has("bonjour", "ami")
    ),
    Question(text="Tell me about the sea in two sentences.", is_good=has_sentences(2)),
    Question(text="Which city do I live in?", is_good=knows("Lisbon")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    answer: str
    seconds: float
    is_good: bool

    @property
    def counts(self) -> bool:
        return self.is_good and self.seconds <= MOST_SECONDS and not repeats(self.answer)


def repeats(answer: str) -> bool:
    """The same line of four words twice, or the same five words four times; code aside."""
    prose = re.sub(r"```.*?(```|$)", "", answer, flags=re.DOTALL)
    lines = Counter(line.strip() for line in prose.splitlines() if len(line.split()) > 3)
    words = prose.split()
    phrases = Counter(zip(*(words[n:] for n in range(5)), strict=False))
    return any(n > 1 for n in lines.values()) or any(n > 3 for n in phrases.values())


async def asked(model: str | None) -> list[Judged]:
    """All questions in one conversation at a terminal, in a fresh home, and what came of them."""
    with tempfile.TemporaryDirectory() as home, Terminal() as terminal:
        nanoloop = CommandLine(Path(home))
        nanoloop.set(NANOLOOP_MODELS=str(FOLDER), **(_servers() if model else {}))
        words = ("chat", "--model", model) if model else ()
        async with nanoloop.started(*words, terminal=terminal) as process:
            await terminal.shows("Ctrl-D quits", within=FIRST_SECONDS)
            seconds = [
                await _answered(nanoloop, terminal, number) for number in range(len(QUESTIONS))
            ]
            terminal.type("\x04")
            await ended(process)
        told, _ = await nanoloop.run("sessions", "export", "default", "--format", "json")
    return list(map(_judged, QUESTIONS, _answers(json.loads(told)), seconds))


def _servers() -> dict[str, str]:
    """The keys and addresses that the environment names."""
    return {name: value for name, value in os.environ.items() if name.endswith(("_KEY", "_URL"))}


async def _answered(nanoloop: CommandLine, terminal: Terminal, number: int) -> float:
    """How long the answer to this question takes, as the log tells its end."""
    started = time.monotonic()
    terminal.type(f"{QUESTIONS[number].text}\r")
    await terminal.until(lambda: nanoloop.turns_ended > number, within=MOST_WAITED_SECONDS)
    return time.monotonic() - started


def _answers(session: Any) -> list[str]:
    """The answer to each question, "" where there is none."""
    found: dict[str, str] = {}
    question = ""
    for entry in session["entries"]:
        said = entry["content"]
        if entry["type"] == "message" and said["role"] == "user":
            question = said["text"]
        elif entry["type"] == "message" and said["role"] == "assistant":
            found[question] = said["text"]
    return [found.get(question.text, "") for question in QUESTIONS]


def _judged(question: Question, answer: str, seconds: float) -> Judged:
    return Judged(answer=answer, seconds=seconds, is_good=question.is_good(answer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="another one than README's first command takes")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--goal", type=int, default=GOAL)
    parser.add_argument("--show", action="store_true", help="the answers too")
    args = parser.parse_args()
    if args.model is None:
        model_file(USEFUL)
    report = Report(f"Ten questions to {args.model or 'the model of a first start'}")
    runs = []
    for _ in range(args.runs):
        run = []
        for question, judged in zip(QUESTIONS, anyio.run(asked, args.model), strict=True):
            run.append(judged)
            if args.show:
                word = "good" if judged.counts else "BAD "
                say(f"\n{word} {judged.seconds:5.1f} s  {question.text}\n{judged.answer}")
        runs.append(run)
    rows = [
        (question.text, *(f"{'good' if j.counts else 'bad'} {j.seconds:.1f} s" for j in judged))
        for question, *judged in zip(QUESTIONS, *runs, strict=True)
    ]
    report.table("Each answer", ("question", *(f"run {n + 1}" for n in range(args.runs))), rows)
    for number, run in enumerate(runs, 1):
        bad = len(run) - sum(judged.counts for judged in run)
        report.goal(f"bad answers of run {number}", bad, len(run) - args.goal)
    report.end()


if __name__ == "__main__":
    main()
