"""What must hold after every step; the numbers are those of the design's section 2."""

from nanoloop.errors import SessionNotFound
from nanoloop.session.log import message_count
from nanoloop.testing.trial import coverage
from tests.proof.marks import marks_in, marks_of
from tests.proof.models import number_of
from tests.proof.world import LIMIT

SUMMARY_WORDS = 201
MESSAGES_A_TURN = 3


class Rules:
    """Remembers what a world held, and says what is wrong with what it holds now."""

    def __init__(self, world):
        self.world = world
        self.logs = {}
        self.born = {}
        self.emptied_at = {}
        self.summaries = {}
        self.changed = set()
        self._marks_of_call = {}
        self._handed = set()
        self._told = set()

    # What a step says it did on purpose

    def rewritten(self, session_id):
        self.logs.pop(session_id, None)
        self.changed.add(session_id)
        self.world.swapped(session_id)

    def emptied(self, session):
        self.emptied_at[session.id] = next(self.world.ticks)
        self.summaries[session.id] = number_of(session.summary)

    def gone(self, session_id):
        self.rewritten(session_id)
        self.emptied_at[session_id] = next(self.world.ticks)
        self.summaries.pop(session_id, None)
        self.born[session_id] = {m for log in self.logs.values() for m in log} | self._said()

    def _said(self):
        return set(self.world.answered)

    # The check

    async def check(self):
        """Everything wrong, in words; empty when all is well."""
        async with self.world.calm():
            return await self._look()

    async def _look(self):
        wrong = self.world.wrong
        self._note_calls()
        ids = [info.id async for info in self.world.inner.list()]
        for session_id in ids:
            wrong += [f"{session_id}: {what}" for what in await self._session(session_id)]
        wrong += await self._answers()
        wrong += await self._commits()
        self.changed.clear()
        return wrong

    def _note_calls(self):
        for number, call in self.world.digester.good_calls().items():
            if number not in self._marks_of_call:
                self._marks_of_call[number] = marks_in(call.text)
                self._handed |= set(marks_in(call.text))

    async def _session(self, session_id):
        report = await coverage(self.world.inner, session_id)  # 1, 7
        wrong = list(report.violations)
        stored = await self.world.inner.load(session_id)
        log = [entry.id for entry in report.log]
        before = self.logs.get(session_id, [])
        if log[: len(before)] != before:  # 3, 4
            wrong.append("the log is not what it was and more")
        self.logs[session_id] = log
        marks = [
            mark for entry in report.log if not is_amendment(entry) for mark in marks_of(entry)
        ]
        said = [mark for mark in marks if mark.startswith("m")]
        if len(set(said)) != len(said) or sorted(said, key=_number) != said:
            wrong.append("users' messages are double or out of order")
        if set(said) & self.born.get(session_id, set()):  # 8
            wrong.append("what was deleted came back")
        covered = {mark for entry in report.covered for mark in marks_of(entry)}
        if covered - self._handed:  # 1
            wrong.append(f"{len(covered - self._handed)} marks are covered and were handed to none")
        wrong += self._summary(session_id, stored.summary)
        live = self.world.loop.sessions._alive.get(session_id)
        is_same = live is None or live.changes() is not None or _ids(live) == _ids(report)
        if not is_same:
            wrong.append("the session in memory shows another window than the stored one")
        return wrong

    def _summary(self, session_id, summary):
        number, before = number_of(summary), self.summaries.get(session_id, 0)
        self.summaries[session_id] = number
        if len(summary.split()) > SUMMARY_WORDS:  # 9
            yield "the summary is longer than it may be"
        if summary and not number:  # 9
            yield "the summary is none that was accepted"
        if number in (0, before) or session_id not in self.emptied_at:
            return
        call = self.world.digester.good_calls().get(number)
        if call is None:
            yield "the summary is of no call that ended well"
        elif self.world.digester.begun_at[call.begun] < self.emptied_at[session_id]:  # 8
            yield "a summary from before a reset came back"

    async def _answers(self):
        """4: each answer that was sent is in the log, once, and so is what it answers."""
        wrong = [f"{m} was answered {n} times" for (m, k), n in self.world.answers.items()
                 if n > 1 and k == "answer"]  # fmt: skip
        fresh = self.world.answered.keys() - self._told
        self._told |= fresh
        for mark in fresh:
            item = self.world.answered[mark]
            if item.kind != "answer" or item.session_id in self.changed:
                continue
            try:
                entries = await self.world.inner.entries(item.session_id)
            except SessionNotFound:
                continue
            marks = [m for e in entries if not is_amendment(e) for m in marks_of(e)]
            if marks.count(mark) != 1 or marks.count(f"a{mark[1:]}") != 1:
                wrong.append(f"{mark} or its answer is not in the log exactly once")
        return wrong

    async def _commits(self):
        """1: what a summary was handed is what it then covers."""
        commits, self.world.commits = self.world.commits, []
        wrong = []
        for session_id, commit in commits:
            try:
                entries = await self.world.inner.entries(session_id, upto=commit.last_seq)
            except SessionNotFound:
                continue
            if session_id in self.changed:
                continue
            old = {m for e in entries if e.seq < commit.first_seq for m in marks_of(e)}
            new = [m for e in entries if e.seq >= commit.first_seq for m in marks_of(e)]
            new = [m for m in new if m not in old]  # what tells of a change names it again
            handed = self._marks_of_call.values()
            if not any([m for m in marks if m not in old] == new for marks in handed):
                wrong.append(f"entries {commit.first_seq} to {commit.last_seq} were handed to none")
        return wrong

    async def window_is_bounded(self, chat):
        session = await self.world.session_of(chat)
        if message_count(session.window) > LIMIT + MESSAGES_A_TURN:  # 9
            self.world.wrong.append(f"{session.id} shows {message_count(session.window)} messages")

    async def nothing_is_left(self):
        """4: at the end whatever was said has its answer, or its sender knows why not."""
        wrong = [f"{info.id} still has messages that wait, or answers that are owed"
                 async for info in self.world.inner.list()
                 if info.waiting or info.unsent or info.awaiting]  # fmt: skip
        for chat in {chat for chat, _ in self.world.asked}:
            asked = [mark for of, mark in self.world.asked if of == chat]
            told = [item.reply_to for item in self.world.sent.values() if item.kind == "answer"]
            heard = [mark for mark in told if mark in asked]
            if heard != sorted(heard, key=_number):
                wrong.append(f"the answers in {chat} are out of order: {heard}")
            wrong += [f"{mark} has no answer" for mark in asked if not self._is_told(mark)]
        return wrong

    def _is_told(self, mark):
        return mark in self.world.answered or mark in self.world.excused


def is_amendment(entry):
    return entry.metadata.get("origin") == "amendment"


def _number(mark):
    return int(mark[1:-1])


def _ids(has_window):
    return [entry.id for entry in has_window.window]
