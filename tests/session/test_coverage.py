"""Every entry is in exactly one of: the window, what waits to be summarised, the summary.

And in exactly one of: what the memo was made from, and what it has yet to take in.
"""

import json
from functools import partial
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nanoloop.protocols import Reply
from nanoloop.session.entry import MESSAGE, Entry
from nanoloop.session.session import Session
from nanoloop.session.sync import blocking

ROLES = st.sampled_from(["user", "assistant"])


class Stored:
    """What a store keeps of a session: all entries, the last head, the last of each section."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.head: dict[str, Any] = {}
        self.sections: dict[str, Any] = {}

    def save(self, session: Session) -> None:
        changes = session.changes()
        if changes is None:
            return
        self.entries.update((entry.seq, entry) for entry in changes.entries)
        self.head = dict(changes.head)
        self.sections.update(changes.sections)
        session.committed(changes)

    def load(self, *, whole: bool) -> Session:
        shown = self.head.get("shown")
        after = 0 if whole or shown is not None else self.head["window"] - 1
        entries = [self.entries[seq] for seq in sorted(self.entries) if seq > after]
        return Session.restored(
            head=self.head, sections=self.sections, entries=entries, after=after
        )


@settings(max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck))
class Coverage(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.session = Session()
        self.stored = Stored()
        self.alive: set[str] = set()
        self.summarised: set[str] = set()
        self.number = 0

    @rule(role=ROLES)
    def say(self, role):
        self.number += 1
        self.alive.add(self.session.add_entry(Entry.message(role, f"m{self.number}")).id)

    @rule()
    def use_a_tool(self):
        for entry in (Entry.tool_call("t", call_id="c"), Entry.tool_result("t", 1, call_id="c")):
            self.alive.add(self.session.add_entry(entry).id)

    @rule(limit=st.integers(1, 8), keep=st.integers(1, 4))
    def trim(self, limit, keep):
        self.session.trim_if_needed(limit, keep)

    @precondition(lambda self: self.session.pending and not self.waits_in_the_store())
    @rule(share=st.integers(1, 4))
    def summarise(self, share):
        batch = self.session.pending[:share]
        self.summarised |= {entry.id for entry in batch}
        assert self.session.update_summary("sum", seq=batch[-1].seq, epoch=self.session.epoch)

    def waits_in_the_store(self):
        return self.session.log.released > self.session.covered_seq

    @rule(kind=st.sampled_from(["lite", "deep"]), keep=st.integers(0, 4))
    def resize(self, kind, keep):
        self.session.settings["session.limit.messages"] = keep
        if self.session.window:
            self.session.resize(force=kind)

    @precondition(lambda self: self.session.log.is_whole and self.session.messages)
    @rule(data=st.data())
    def show_a_part(self, data):
        full = self.session.full_chat_history
        places = st.sets(st.integers(0, len(full) - 1), min_size=1)
        self.session.current_chat_history = [full[n] for n in sorted(data.draw(places))]

    @rule()
    def undo(self):
        if self.session.log.is_whole:
            self.alive -= {entry.id for entry in self.session.undo()}

    @rule()
    def reset(self):
        self.session.reset_history()
        self.alive.clear()

    @rule()
    def save(self):
        self.stored.save(self.session)

    @rule()
    def release(self):
        self.session.release()

    @rule(whole=st.booleans())
    def restart(self, whole):
        self.stored.save(self.session)
        before = self.session.window
        self.session = self.stored.load(whole=whole)
        assert [e.id for e in self.session.window] == [e.id for e in before]
        assert self.session.changes() is None

    @invariant()
    def every_entry_is_in_one_place(self):
        self.stored.save(self.session)
        whole = self.stored.load(whole=True)
        window = {entry.id for entry in whole.window}
        entries = whole.log.entries
        pending = {e.id for e in entries if e.seq > whole.covered_seq} - window
        assert {entry.id for entry in whole.pending} <= pending
        covered = {e.id for e in entries if e.seq <= whole.covered_seq} - window
        assert {entry.id for entry in entries} == self.alive
        assert window | pending | covered == self.alive
        if whole.log.shown is None:
            assert {entry.id for entry in whole.pending} == pending

    @invariant()
    def what_is_covered_was_summarised(self):
        session = self.session
        covered = {e.id for e in session.log.entries if e.seq <= session.covered_seq}
        assert covered - {e.id for e in session.window} <= self.summarised

    @invariant()
    def the_window_is_never_empty(self):
        assert bool(self.session.window) == bool(self.session.entry_count)


TestCoverage = Coverage.TestCase


class MemoModel:
    """Hears what each memo is made from."""

    def __init__(self) -> None:
        self.heard: set[str] = set()

    async def chat(self, *, messages, **_):
        asked = json.loads(messages[-1]["content"])
        self.heard |= {message["content"] for message in asked["messages"]}
        return Reply(text='{"memo": {"so far": "all is well"}}')

    async def close(self):
        pass


class MemoCoverage(Coverage):
    """The same with a memo, which comes behind the cuts, or never where the process ends first."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MemoModel()
        self.equip()

    def equip(self):
        self.session.provider = self.model
        self.session.configure(mode="memo")

    async def entries(self, *, after, upto):
        self.stored.save(self.session)
        return [entry for seq, entry in sorted(self.stored.entries.items()) if after < seq <= upto]

    async def change(self, act):
        done = act(self.session)
        self.stored.save(self.session)
        return done

    @rule(kind=st.sampled_from(["lite", "deep"]), keep=st.integers(0, 4))
    def resize(self, kind, keep):
        self.session.settings["session.limit.messages"] = keep
        if self.session.window:
            blocking(partial(self.session.async_resize, kind, read=self.entries))

    @rule(messages=st.integers(0, 4), chars=st.sampled_from([0, 10, 40]), every=st.integers(0, 3))
    def cut_by_rules(self, messages, chars, every):
        limit = {"messages": messages, "chars": chars}
        self.session.configure(limit=limit, every_n_turns=every)
        self.session.cut_by_rules()

    @precondition(lambda self: self.session.is_memo_due)
    @rule()
    def update_the_memo(self):
        update = partial(self.session.update_memo, change=self.change, read=self.entries)
        assert blocking(update)
        assert not self.session.is_memo_due

    @rule(whole=st.booleans())
    def restart(self, whole):
        was_due = self.session.is_memo_due
        super().restart(whole)
        self.session.provider = self.model
        assert self.session.is_memo_due == was_due

    @invariant()
    def what_the_memo_covers_was_given_to_it(self):
        whole = self.stored.load(whole=True)
        said = [entry for entry in whole.log.entries if entry.type == MESSAGE]
        covered = {str(e.content["text"]) for e in said if e.seq <= whole.memo_seq}
        assert covered <= self.model.heard


TestMemoCoverage = MemoCoverage.TestCase
TestMemoCoverage.settings = settings(
    max_examples=30, stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
