"""Facts said once in a long conversation, and which of them can still be found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Exchange = tuple[str, str]
"""What the user said and what was answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing the user says, and the words of it that must not get lost."""

    said: str
    signs: tuple[str, ...]
    """It has survived where all of these are found, in any case."""

    def is_in(self, text: str) -> bool:
        """Whether it can be read off this text."""
        folded = text.casefold()
        return all(sign.casefold() in folded for sign in self.signs)


SOME_FACTS = (
    Fact(said="By the way, my dog is called Biscuit.", signs=("Biscuit",)),
    Fact(said="I am allergic to hazelnuts, please remember.", signs=("hazelnut",)),
    Fact(said="The rent is 1,240 euros a month.", signs=("1,240",)),
    Fact(said="We fly to Lisbon on 14 May.", signs=("Lisbon", "14 May")),
    Fact(said="The report is in notes/q3-final.md.", signs=("notes/q3-final.md",)),
    Fact(said="Order number 77-A41 has not come yet.", signs=("77-A41",)),
    Fact(said="You promised to remind me of the dentist.", signs=("dentist",)),
    Fact(said="我妹妹叫小梅, 她住在成都。", signs=("小梅", "成都")),
)
SMALL_TALK = (
    ("What is the weather like?", "I can't look outside, but you can tell me."),
    ("Tell me something about tea.", "Green and black tea come from the same plant."),
    ("I am bored.", "Then let us play a game of words."),
    ("How do I boil an egg?", "Seven minutes in boiling water, then cold water."),
)


class PlantedFacts:
    """Facts for a conversation, and a score of which survive."""

    def __init__(self, facts: Sequence[Fact] = SOME_FACTS) -> None:
        self.facts = tuple(facts)

    def conversation(self, exchanges: int = 40, *, within: float = 0.5) -> list[Exchange]:
        """So many exchanges of small talk, the facts spread over the first part of them."""
        talk = [SMALL_TALK[number % len(SMALL_TALK)] for number in range(exchanges)]
        room = max(len(self.facts), int(exchanges * within))
        for number, fact in enumerate(self.facts):
            place = number * room // max(1, len(self.facts))
            talk.insert(min(place + number, len(talk)), (fact.said, "I have noted that."))
        return talk

    def surviving(self, text: str) -> tuple[Fact, ...]:
        """The facts that can be read off this text."""
        return tuple(fact for fact in self.facts if fact.is_in(text))

    def survival(self, text: str) -> float:
        """The share of facts that can be read off this text, from 0 to 1."""
        return len(self.surviving(text)) / len(self.facts) if self.facts else 1.0
