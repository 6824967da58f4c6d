"""Breaks each promise in one small place: the test that is named for it has to turn red.

`python -m tests.mutations [--short] [WORD]`, with a word only those whose promise has it. The short
form breaks every third, others with each commit, and looks for the places of all.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
COPIED = (
    "nanoloop",
    "tests",
    "examples",
    "config",
    "docs",
    ".github",
    "README.md",
    "pyproject.toml",
)
SECONDS = 30
"""A test that comes to no end has turned red too."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    promise: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS = (
    Mutation(
        promise="what another writer committed costs no message",
        file="nanoloop/writing.py",
        old="            except StoreConflict:\n                if number:",
        new="            except StoreConflict:\n                raise\n                if number:",
        test="tests/test_writing.py::test_a_title_changed_beside_the_loop_costs_no_message",
    ),
    Mutation(
        promise="a session made anew under an id is another one",
        file="nanoloop/writing.py",
        old="fresh.created_at != session.created_at",
        new="False",
        test="tests/test_writing.py::test_one_made_anew_under_the_same_id_is_another_one",
    ),
    Mutation(
        promise="all of a session that is kept is renewed",
        file="nanoloop/session/session.py",
        old='"_awaiting", ',
        new="",
        test="tests/test_writing.py::test_all_of_a_session_that_is_kept_is_renewed",
    ),
    Mutation(
        promise="nothing changed costs no commit",
        file="nanoloop/writing.py",
        old="if session.tracker.is_saved and session.revision:",
        new="if False:",
        test="tests/test_writing.py::test_nothing_changed_costs_neither_a_read_nor_a_commit",
    ),
    Mutation(
        promise="a message is acknowledged once it is durable",
        file="nanoloop/loop.py",
        old="            arrival = await self._kept_in_the_end(delivery)",
        new="            await delivery.ack()\n"
        "            arrival = await self._kept_in_the_end(delivery)",
        test="tests/test_recovery.py::test_a_message_is_not_acknowledged_before_the_store_is_back",
    ),
    Mutation(
        promise="a repeated message is answered once",
        file="nanoloop/loop.py",
        old="    return session.hear(message.session_key, name)",
        new="    return True",
        test="tests/test_holds.py -k repeat",
    ),
    Mutation(
        promise="what changes something waits for its turn",
        file="nanoloop/commands.py",
        old="        return not self._commands[name].writes(rest)",
        new="        return True",
        test="tests/test_holds.py -k before_a_new_beginning",
    ),
    Mutation(
        promise="what waits goes along when a chat goes on elsewhere",
        file="nanoloop/session/queue.py",
        old="        if moved:\n",
        new="        if False:\n",
        test="tests/session/test_next.py",
    ),
    Mutation(
        promise="a command and what it does are one commit",
        file="nanoloop/writing.py",
        old="        session.let_go_held(self.entry_id)\n        return done",
        new="        return done",
        test="tests/test_chat.py -k every_prefix",
    ),
    Mutation(
        promise="the old conversation says where its chat goes on",
        file="nanoloop/sessions.py",
        old="        session.move(moved)",
        new="        pass",
        test="tests/test_chat.py -k every_prefix",
    ),
    Mutation(
        promise="an answer is owed until it has arrived",
        file="nanoloop/exchange.py",
        old="                session.owe(kept[-1].seq)",
        new="                pass",
        test="tests/test_recovery.py",
    ),
    Mutation(
        promise="an answer that is on its way is not sent once more",
        file="nanoloop/session/queue.py",
        old="next((seq for seq in self.unsent if seq not in sent), None)",
        new="next(iter(self.unsent), None)",
        test="tests/test_recovery.py::test_an_answer_on_its_way_is_not_sent_once_more",
    ),
    Mutation(
        promise="a conversation whose time runs out keeps question and answer",
        file="nanoloop/exchange.py",
        old="if not self.session.has_expired():",
        new="if True:",
        test="tests/test_writing.py -k time_runs_out",
    ),
    Mutation(
        promise="a question that somebody else answered is not answered twice",
        file="nanoloop/exchange.py",
        old="if not is_ours and not self.is_over:",
        new="if False:",
        test="tests/test_writing.py -k not_answered_twice",
    ),
    Mutation(
        promise="what was paid for is not given up while the store is away",
        file="nanoloop/exchange.py",
        old="            await self._keep_in_the_end(act, answer.entries[-1].id)",
        new="            raise",
        test="tests/test_recovery.py -k no_room_for_yet",
    ),
    Mutation(
        promise="a call that a restart cut off is closed",
        file="nanoloop/tools/effects.py",
        old="    for call in open_calls([e for e in session.window if e.seq >= since]):",
        new="    for call in ():",
        test="tests/test_recovery.py tests/test_turn_results.py",
    ),
    Mutation(
        promise="a writing call is not run twice in a turn",
        file="nanoloop/tools/effects.py",
        old='str(said.get("tool")), said.get("parameters"), entries[result]',
        new='"", None, entries[result]',
        test="tests/test_turn_results.py tests/test_tools_effects.py",
    ),
    Mutation(
        promise="a tool's writing call that a kill cut off is not run again",
        file="nanoloop/tools/effects.py",
        old="return is_safe and session",
        new="return session",
        test="tests/test_tools_call.py -k unknown",
    ),
    Mutation(
        promise="a tool's call keeps its id over a restart",
        file="nanoloop/tools/call.py",
        old="call=call.id,",
        new="call=str(id(call)),",
        test="tests/test_tools_call.py -k same_id",
    ),
    Mutation(
        promise="a tool's lost reply is settled before the model pays twice",
        file="nanoloop/tools/effects.py",
        old="outcome.question is not None or outcome.is_refused or not can_settle:",
        new="outcome is not None:",
        test="tests/test_tools_call.py -k lost_reply",
    ),
    Mutation(
        promise="what a tool says answers no question",
        file="nanoloop/exchange.py",
        old="replace(said, reply_to=None, id=",
        new="replace(said, id=",
        test="tests/test_tools_call.py -k program_that_asks",
    ),
    Mutation(
        promise="a tool's whole result is its session's before it is committed",
        file="nanoloop/tools/results.py",
        old="            await self._files.refer(self._session.id, [kept.id])\n",
        new="",
        test="tests/test_tools_results.py",
    ),
    Mutation(
        promise="a tool's code that others can write is not run",
        file="nanoloop/tools/functions.py",
        old="    if is_open and S_IMODE",
        new="    if False and S_IMODE",
        test="tests/attack/test_own_tools.py",
    ),
    Mutation(
        promise="a tool of a server that changed is withheld",
        file="nanoloop/tools/servers.py",
        old="if tool.digest == known.get(tool.name)]",
        new="if tool.name in known]",
        test="tests/test_tools_servers.py -k withheld",
    ),
    Mutation(
        promise="one bad tool of a server hides no other",
        file="nanoloop/tools/mcp.py",
        old="            else:\n                yield alone",
        new="            finally:\n                yield tool",
        test="tests/test_tools_servers.py -k proper_schema",
    ),
    Mutation(
        promise="a server that died in a call is entered anew",
        file="nanoloop/tools/servers.py",
        old="while self._connection is None or self._connection.why_gone:",
        new="while self._connection is None:",
        test="tests/test_tools_servers.py -k dies_in_a_call",
    ),
    Mutation(
        promise="a server that falls silent in a call is given up",
        file="nanoloop/tools/servers.py",
        old="        if connection.heard == heard:",
        new="        if False:",
        test="tests/test_tools_servers.py -m slow -k falls_silent",
    ),
    Mutation(
        promise="a call that a dying server cut off is unknown",
        file="nanoloop/tools/toolbox.py",
        old="            self.is_unknown = isinstance(error, ServerGone)",
        new="            self.is_unknown = False",
        test="tests/test_tools_servers_app.py -k cut_off",
    ),
    Mutation(
        promise="no process of a server outlives a killed nanoloop",
        file="nanoloop/children.py",
        old='read _ <"$0"; kill -9 0)',
        new='read _ <"$0")',
        test="tests/test_tools_servers.py -m slow -k kill_of_nanoloop",
    ),
    Mutation(
        promise="a server that stays keeps its connection in a reload",
        file="nanoloop/tools/servers.py",
        old="if place.name in before and before[place.name].place == place",
        new="if False",
        test="tests/test_tools_servers.py -k reload",
    ),
    Mutation(
        promise="a message of a server without end is cut",
        file="nanoloop/tools/transports.py",
        old="        if size > MOST_BYTES:\n            raise ServerGone",
        new="        if False:\n            raise ServerGone",
        test="tests/attack/test_a_tool_server.py -m slow -k without_end",
    ),
    Mutation(
        promise="processes that renew a login at once do not lose it",
        file="nanoloop/tools/logins.py",
        old="                while not self._is_locked(server, stack):",
        new="                while False:",
        test="tests/test_tools_servers_oauth.py -m slow -k at_once",
    ),
    Mutation(
        promise="an answer to another login is refused",
        file="nanoloop/tools/oauth.py",
        old="        if not compare_digest(",
        new="        if False and not compare_digest(",
        test="tests/test_tools_servers_oauth.py -m slow -k wrong-state",
    ),
    Mutation(
        promise="a login is sent to no other address",
        file="nanoloop/tools/oauth.py",
        old="if login is None or login.url != self._place.url:",
        new="if login is None:",
        test="tests/test_tools_servers_oauth.py -k no_other_address",
    ),
    Mutation(
        promise="a login goes to no address without https",
        file="nanoloop/tools/oauth.py",
        old='        if not _is_safe(url, self._place):\n            raise LoginFailed("its auth',
        new='        if False:\n            raise LoginFailed("its auth',
        test="tests/test_tools_servers_oauth.py -k without_https",
    ),
    Mutation(
        promise="an agent's list decides on prompts too",
        file="nanoloop/parts.py",
        old="return {names[each]: known[names[each]] for each in picked}",
        new="return known",
        test="tests/test_tools_servers_prompts.py -k list_decides",
    ),
    Mutation(
        promise="a prompt keeps its place among waiting messages",
        file="nanoloop/commands.py",
        old="            for entry in behind:",
        new="            for entry in ():",
        test="tests/test_tools_servers_prompts.py -k keeps_its_place",
    ),
    Mutation(
        promise="tools of servers stay within their budget",
        file="nanoloop/tools/finding.py",
        old="        if tokens < 0:",
        new="        if False:",
        test="tests/test_tools_finding.py",
    ),
    Mutation(
        promise="a tool's broken module leaves the earlier one",
        file="nanoloop/tools/functions.py",
        old="            sys.modules[known] = before\n",
        new="            pass\n",
        test="tests/test_tools_functions.py -k anew",
    ),
    Mutation(
        promise="a late summary does not come back after a reset",
        file="nanoloop/session/conversation.py",
        old="if epoch is not None and epoch != self.epoch:",
        new="if False:",
        test="tests/session/test_conversation.py tests/session/test_coverage.py",
    ),
    Mutation(
        promise="a summary stands for nothing that the window shows",
        file="nanoloop/session/conversation.py",
        old="reach = self._summary.seq if seq is None else min(seq, self.log.evicted)",
        new="reach = self._summary.seq if seq is None else seq",
        test="tests/session",
    ),
    Mutation(
        promise="a summary that somebody corrected stays",
        file="nanoloop/memory/summarizer.py",
        old="if session.epoch == epoch and session.summary != before:",
        new="if False:",
        test="tests/test_summarizer_text.py -k edited",
    ),
    Mutation(
        promise="a raised flag is a claim",
        file="nanoloop/memory/summarizer.py",
        old="if session.summary_in_progress and not (evicted or claimed):",
        new="if False:",
        test="tests/test_summarizer.py -k raised_flag",
    ),
    Mutation(
        promise="a commit whose answer got lost is known again",
        file="nanoloop/stores/database.py",
        old="if head.get(COMMIT_ID) == token:",
        new="if False:",
        test="tests/test_stores_tried.py",
    ),
    Mutation(
        promise="unreadable bytes are set aside and not destroyed",
        file="nanoloop/stores/jsonl/log_file.py",
        old="        if torn:  # perhaps",
        new="        if False:  # perhaps",
        test="tests/test_jsonl_damage.py",
    ),
    Mutation(
        promise="no message text in the log",
        file="nanoloop/telemetry.py",
        old='_NEVER_LOGGED = frozenset({"text", "content"})',
        new="_NEVER_LOGGED = frozenset()",
        test="tests/test_telemetry.py",
    ),
    Mutation(
        promise="turns are drawn by owner",
        file="nanoloop/chat.py",
        old="self._limiter.turn(exchange.message.owner)",
        new="self._limiter.turn(key)",
        test="tests/test_loop.py::test_who_has_many_chats_delays_another_by_one_turn_at_most",
    ),
    Mutation(
        promise="some turns are kept by fairness for who has none",
        file="nanoloop/fairness.py",
        old="max(1, capacity // 4) if capacity > 1 else 0",
        new="0",
        test="tests/test_loop.py::test_who_has_nothing_running_waits_for_nobody",
    ),
    Mutation(
        promise="fairness loses no turn where a wait is cancelled",
        file="nanoloop/fairness.py",
        old="            else:\n                self._end(owner)\n            raise",
        new="            raise",
        test="tests/test_fairness.py::test_who_is_cancelled_right_when_drawn_passes_the_turn_on",
    ),
    Mutation(
        promise="fairness holds for calls without a session too",
        file="nanoloop/channels/web/openai/completions.py",
        old="        async with self._waits:\n",
        new="        if True:\n",
        test="tests/test_web_fairness.py::test_calls_without_a_session_wait_for_their_turn_too",
    ),
    Mutation(
        promise="what is said too fast waits for its time",
        file="nanoloop/loop.py",
        old=" and not message.early_seconds",
        new="",
        test="tests/test_platform_channel.py -k still_does_after_a_restart",
    ),
    Mutation(
        promise="what was said too fast is answered when its time comes",
        file="nanoloop/chat.py",
        old="        await anyio.sleep(seconds)\n        self.wake(key, session_id)",
        new="        await anyio.sleep(seconds)",
        test="tests/test_platform_channel.py -k said_too_fast_is_answered_later",
    ),
    Mutation(
        promise="an observer that raises costs no answer",
        file="nanoloop/events.py",
        old="        except Exception as error:  # noqa: BLE001 - as above",
        new="        except KeyError as error:",
        test="tests/test_events.py",
    ),
    Mutation(
        promise="a turn that another process goes on with keeps and sends nothing",
        file="nanoloop/exchange.py",
        old="is_ours = (session.awaiting, session.claims) == (self.seq, self.claim)",
        new="is_ours = session.awaiting == self.seq",
        test="tests/test_nodes.py -k another_process_goes_on_with",
    ),
    Mutation(
        promise="who hears a message answers it, whatever goes on elsewhere",
        file="nanoloop/chat.py",
        old="            if self._nodes.is_other(hearer_of(entry)):\n                return None",
        new="            if False:\n                return None",
        test="tests/test_nodes.py -k waits_for_that_answer",
    ),
    Mutation(
        promise="what a living process is at is taken over by nobody",
        file="nanoloop/nodes.py",
        old="return self._lives(name) if name in self._others else name not in self._gone",
        new="return False",
        test="tests/test_nodes.py -k process_that_lives_is_at",
    ),
    Mutation(
        promise="what a process leaves is taken over",
        file="nanoloop/chat.py",
        old="        return () if self.first(session) is None else (session,)",
        new="        return ()",
        test="tests/test_nodes.py -k taken_over_by_one_that_lives",
    ),
    Mutation(
        promise="stop reaches a turn wherever it runs",
        file="nanoloop/chat.py",
        old="elif session.stopped == exchange.claim:",
        new="elif False:",
        test="tests/test_nodes.py -k stop_reaches",
    ),
    Mutation(
        promise="an edit reaches a question wherever it is asked",
        file="nanoloop/loop.py",
        old="                session.claim(self._parts.nodes.me)  # ends the",
        new="                pass  # ends the",
        test="tests/test_nodes.py -k tool_has_run_elsewhere",
    ),
    Mutation(
        promise="a process that lost a chat sends nothing there",
        file="nanoloop/sending.py",
        old="while not self.nodes.is_sure(self.lapses):",
        new="while False:",
        test="tests/test_nodes.py -k lost_before_it_was_sent",
    ),
    Mutation(
        promise="a platform's account is served by one process",
        file="nanoloop/nodes.py",
        old="for account in self._uses.keys() - self._held:",
        new="for account in ():",
        test="tests/test_nodes.py -k an_account_is_used",
    ),
    Mutation(
        promise="a window is cut in its answer's commit",
        file="nanoloop/exchange.py",
        old="            self._turn.cut_with_answer(session)\n",
        new="",
        test="tests/test_exchange.py -k 'answers_commit'",
    ),
    Mutation(
        promise="a memo reaches no further than what it was made from",
        file="nanoloop/session/resize.py",
        old="        seq = now.memo_seq if now.keeps_memo else now.end",
        new="        seq = now.end",
        test="tests/session/test_coverage.py",
    ),
    Mutation(
        promise="a memo that failed or was killed is made up for",
        file="nanoloop/session/session.py",
        old='            is_behind = self.memo_seq < int(self.resized.get("seq", 0))',
        new='            is_behind = self.turns == self.resized.get("turn")',
        test="tests/test_exchange.py -k kept_out_of_the_memo",
    ),
    Mutation(
        promise="a memo that somebody wrote meanwhile stays",
        file="nanoloop/session/resize.py",
        old=" or _seen(memo) != _seen(now.memo):",
        new=":",
        test="tests/test_exchange.py -k somebody_wrote_meanwhile",
    ),
    Mutation(
        promise="an answer that is sent again keeps its place",
        file="nanoloop/session/queue.py",
        old="        if seq not in self.unsent:  # otherwise it keeps its place\n",
        new="        self.unsent = tuple(each for each in self.unsent if each != seq)\n"
        "        if True:\n",
        test="tests/session/test_queue.py -k keeps_its_place",
    ),
    Mutation(
        promise="a chat is told once that its store is away",
        file="nanoloop/sending.py",
        old="        if name not in told:\n",
        new="        if True:\n",
        test="tests/test_recovery.py -k told_once",
    ),
    Mutation(
        promise="a request's bytes beside its body are bounded",
        file="nanoloop/channels/server.py",
        old="        return self._beside > HEAD_BYTES + CHUNK_COST * self._body\n",
        new="        return False\n",
        test="tests/test_web_limits.py -k beside_its_body",
    ),
    Mutation(
        promise="a process that ended is dead at once",
        file="nanoloop/nodes.py",
        old="dead = [row.id for row in rows if row.id != self.me and is_dead(row)]",
        new="dead = []",
        test="tests/test_nodes.py -k gone_at_once",
    ),
    Mutation(
        promise="all listeners of a process share one limit of connections",
        file="nanoloop/channels/server.py",
        old="_Protocol.among(connections_of_process())",
        new="_Protocol.among(OpenConnections(8))",
        test="tests/test_listeners.py -k all_listeners",
    ),
    Mutation(
        promise="JSON beside images has a limit of its own",
        file="nanoloop/channels/web/openai/request.py",
        old="if _bytes_beside_images(data) > JSON_BYTES:",
        new="if len(data) > 10**9:",
        test="tests/attack/test_a_token_bodies.py -k limit_of_its_own",
    ),
    Mutation(
        promise="a large body is parsed outside the event loop",
        file="nanoloop/channels/web/api.py",
        old="return does() if size <= LOOP_BYTES else",
        new="return does() if size else",
        test="tests/attack/test_a_token_bodies.py -k outside_the_event_loop",
    ),
    Mutation(
        promise="an image at a private address is not asked for",
        file="nanoloop/addresses.py",
        old="return not any(address in special for special in _SPECIAL)",
        new="return True",
        test="tests/attack/test_a_token_bodies.py -k in_our_network",
    ),
    Mutation(
        promise="a name that leads to a private address is refused",
        file="nanoloop/channels/web/openai/completions.py",
        old="    await check_images(call.backend, messages)\n",
        new="",
        test="tests/attack/test_a_token_bodies.py -k in_our_network",
    ),
    Mutation(
        promise="what is fetched comes from the address that was checked",
        file="nanoloop/addresses.py",
        old="                        resolver=pinned,\n",
        new="",
        test="tests/test_addresses.py -k looks_up_no_second",
    ),
    Mutation(
        promise="a child process sees no key",
        file="nanoloop/children.py",
        old="patterns = (*USUAL, *keeps)",
        new='patterns = (*USUAL, *keeps, "*")',
        test="tests/test_children.py -k no_key",
    ),
    Mutation(
        promise="strangers keep nobody from pairing",
        file="nanoloop/channels/kit/access.py",
        old="(person.channel, CODES),",
        new="(person.channel, 10**9),",
        test="tests/attack/test_a_stranger.py -k keep_nobody",
    ),
    Mutation(
        promise="one broken picture hides no others",
        file="nanoloop/pictures.py",
        old="bool(refused.most or not most)",
        new="True",
        test="tests/attack/test_an_upload_pictures.py -k seen_between",
    ),
    Mutation(
        promise="what a killed process left of an erasure is finished by another",
        file="nanoloop/writing.py",
        old="        session.erasing = (*session.erasing, _ranges(seqs))\n",
        new="",
        test="tests/attack/test_erasure.py::"
        "test_what_another_process_left_when_it_was_killed_is_finished_by_one_that_lives",
    ),
    Mutation(
        promise="the notes of a platform hold no text",
        file="nanoloop/channels/kit/drafts.py",
        old="                self._learn(self._without_text(json.loads(line)))\n",
        new="                self._learn(json.loads(line))\n",
        test="tests/test_platform_channel.py::"
        "test_what_earlier_versions_noted_of_an_answer_is_known_and_kept_without_its_text",
    ),
    Mutation(
        promise="a change of an erased message does not bring it back",
        file="nanoloop/writing.py",
        old="            session.hear(_chat_of(session), name)\n",
        new="            pass\n",
        test="tests/attack/test_erasure.py::"
        "test_a_change_of_what_was_erased_does_not_bring_it_back",
    ),
    Mutation(
        promise="a sealed store opens with all of its keys only",
        file="nanoloop/stores/seal_record.py",
        old="if missing := [name for name in record.keys if name not in seal.names]:",
        new="if missing := []:",
        test="tests/test_sealing.py -k 'a_key_is_dropped and sqlite'",
    ),
    Mutation(
        promise="what is sealed opens at its own number only",
        file="nanoloop/stores/sealing.py",
        old="told = (entry.seq, entry.id,",
        new="told = (entry.id,",
        test="tests/test_sealing.py -k another_number",
    ),
    Mutation(
        promise="what is sealed opens in its own store only",
        file="nanoloop/stores/sealing.py",
        old='return place("entry", self._store, session_id, state.born, *told)',
        new='return place("entry", session_id, "", *told)',
        test="tests/test_sealing.py -k another_store",
    ),
    Mutation(
        promise="a part opens as it was sealed last only",
        file="nanoloop/stores/sealing.py",
        old="session_id, state.born, name, state.parts[name])",
        new="session_id, state.born, name)",
        test="tests/test_sealing.py -k part_as_it_was",
    ),
    Mutation(
        promise="a sealed head is the one that was sealed",
        file="nanoloop/stores/sealing.py",
        old="self.seal.open(tag, where)",
        new="pass",
        test="tests/test_sealing.py -k number_of_the_head",
    ),
    Mutation(
        promise="what is sealed has all of its entries",
        file="nanoloop/stores/snapshot.py",
        old="if lost := [number for number in missing if not state.is_gone(number)]:",
        new="if lost := []:",
        test="tests/test_sealing.py -k entry_that_is_dropped",
    ),
    Mutation(
        promise="what was erased does not come back",
        file="nanoloop/stores/sealing.py",
        old="if state and opened.type != ERASED and state.is_gone(entry.seq):",
        new="if False:",
        test="tests/test_sealing.py -k erased_entry_does_not",
    ),
    Mutation(
        promise="sealing sees what another process commits meanwhile",
        file="nanoloop/stores/store.py",
        old="changes = changed(snapshot.to_changes(), revision=revision)",
        new="changes = snapshot.to_changes()",
        test="tests/test_sealing.py -k who_had_a_session_open",
    ),
    Mutation(
        promise="a file that is refused costs a sentence, and not the answer",
        file="nanoloop/channels/kit/uploads.py",
        old="                reason = reason_of(error)",
        new="                raise",
        test="tests/test_sent_files.py::test_a_refused_file_costs_a_sentence_and_not_the_answer",
    ),
    Mutation(
        promise="a path that a model chose stays beneath its folder",
        file="nanoloop/tools/file_results.py",
        old="beneath=self.beneath)",
        new="beneath=None)",
        test="tests/attack/test_tool_paths.py::test_a_name_that_a_model_chose_gets_nothing_from_outside",
    ),
    Mutation(
        promise="a file that is attached while a tool runs is kept if the tool then fails",
        file="nanoloop/tools/toolbox.py",
        old="        if left:\n",
        new="        if False:\n",
        test="tests/test_attaching.py -k stays_attached",
    ),
    Mutation(
        promise="a call that has ended takes no more files",
        file="nanoloop/tools/file_results.py",
        old="files, self._files = self._files or (), None",
        new="files = self._files or ()",
        test="tests/test_attaching.py -k no_more",
    ),
    Mutation(
        promise="a shared folder with our own data is refused",
        file="nanoloop/tool_sources.py",
        old="if place.is_relative_to(there) or there.is_relative_to(place):",
        new="if False:",
        test="tests/test_tools_files.py -k wrong_table",
    ),
    Mutation(
        promise="a file is written completely or not at all",
        file="nanoloop/tools/files.py",
        old='fresh = f".{token_hex(8)}"\n        fd, has_name = _made(within, fresh)',
        new="fresh, how = last, os.O_WRONLY | os.O_CREAT | os.O_TRUNC\n"
        "        fd, has_name = os.open(last, how, 0o600, dir_fd=within), True",
        test="tests/test_tools_files.py -k 'nothing_between or leaves_the_old'",
    ),
    Mutation(
        promise="no link in a shared folder is followed",
        file="nanoloop/files.py",
        old="within = entered(part, os.O_RDONLY | os.O_NOFOLLOW, within)",
        new="within = entered(part, os.O_RDONLY, within)",
        test="tests/test_tools_files.py -k outside",
    ),
    Mutation(
        promise="a page is told as data from its address",
        file="nanoloop/tools/fetch.py",
        old="lines = (_head(found, what), ",
        new="lines = (",
        test="tests/test_tools_fetch.py -k told_as_data",
    ),
    Mutation(
        promise="a command has no network unless the settings say so",
        file="nanoloop/tools/shell.py",
        old='*(["--share-net"] if own.network else [])',
        new='*["--share-net"]',
        test="tests/test_tools_shell.py -k network",
    ),
    Mutation(
        promise="a command gets no variable of ours",
        file="nanoloop/tools/shell.py",
        old='"--clearenv", ',
        new="",
        test="tests/test_tools_shell.py -k variable",
    ),
    Mutation(
        promise="a skill that others may write to is not used",
        file="nanoloop/skills.py",
        old="check_ours(path, there, is_open=is_open, also=(_ROOT,), so=_NOT_USED)",
        new="pass",
        test="tests/test_skills.py -k others_may_write",
    ),
    Mutation(
        promise="the list of skills is the same text each time",
        file="nanoloop/skills.py",
        old="lines = sorted(skill.line for skill in skills)",
        new="lines = [skill.line for skill in skills]",
        test="tests/test_skills.py -k order_of_folders",
    ),
    Mutation(
        promise="a file of another session is not sent",
        file="nanoloop/attachments.py",
        old="kept = await self.held(session_id, attachment_id)",
        new="kept = await self.about(attachment_id)",
        test="tests/attack/test_tool_paths.py::test_the_file_of_another_session_is_not_sent_and_the_text_says_so",
    ),
    Mutation(
        promise="what a tool made goes out with the answer, also after a restart",
        file="nanoloop/exchange.py",
        old="        made = [*sent_with(said)]",
        new="        made = [*sent_with(said)] if answer.steps > 1 else []",
        test="tests/test_sent_files.py::test_after_a_restart_before_the_answer_the_file_still_goes_out",
    ),
    Mutation(
        promise="a document is read to its end",
        file="nanoloop/documents.py",
        old="MOST_CHARS = 10_000_000",
        new="MOST_CHARS = 100_000",
        test="tests/test_documents.py::test_the_fact_on_the_last_page_reaches_the_model",
    ),
    Mutation(
        promise="the start of an approved call is durable before it runs",
        file="nanoloop/turn.py",
        old="claim = await self.change(partial(_start, number=approval.number))",
        new="claim = _start(self.session, number=approval.number)",
        test="tests/test_approvals.py -k started_is_not_run_again",
    ),
    Mutation(
        promise="an approved call that was cut off does not run again",
        file="nanoloop/tools/effects.py",
        old='return approval.state != "started" or (is_safe and attempt <= MOST_ATTEMPTS)',
        new="return True",
        test="tests/test_approvals.py -k started_is_not_run_again",
    ),
    Mutation(
        promise="an approval is closed with the result of its call",
        file="nanoloop/turn.py",
        old="        approvals.close(session, int(entry.metadata[APPROVED]))",
        new="        pass",
        test="tests/test_approvals.py -k runs_once_on_a_yes",
    ),
    Mutation(
        promise="a call that waits for approval does not run",
        file="nanoloop/turn.py",
        old="[call for call in calls if WAITS_FOR not in call.metadata]",
        new="calls",
        test="tests/test_approvals.py -k in_full_and_runs_once",
    ),
    Mutation(
        promise="a call that nobody can approve is not run",
        file="nanoloop/tools/effects.py",
        old="        if not self._may_run(call):  #",
        new="        if False:  #",
        test="tests/test_approvals.py -k nobody_can_be_asked",
    ),
    Mutation(
        promise="the question about a call is owed to the chat",
        file="nanoloop/turn.py",
        old="if paused := self._paused(0):",
        new="if paused := None:",
        test="tests/test_approvals.py -k kill_kept_back",
    ),
    Mutation(
        promise="a yes counts from the asker only",
        file="nanoloop/approvals.py",
        old='if approval.who == "asker" and rank != "owner" and not is_asker:',
        new="if False:",
        test="tests/attack/test_approvals.py -k counts_from_the_asker",
    ),
    Mutation(
        promise="a yes counts from operators only, if the settings say so",
        file="nanoloop/approvals.py",
        old='if approval.who == "operators" and rank == "user":',
        new="if False:",
        test="tests/test_approvals.py -k operators_answer",
    ),
    Mutation(
        promise="a yes is for the tool that was shown",
        file="nanoloop/approvals.py",
        old='return None if digest == approval.digest else "changed"',
        new="return None",
        test="tests/test_approvals.py -k changed_since",
    ),
    Mutation(
        promise="a yes that comes too late runs nothing",
        file="nanoloop/approvals.py",
        old="if utc_now().timestamp() > approval.expires_at:",
        new="if False:",
        test="tests/test_approvals.py -k comes_too_late",
    ),
    Mutation(
        promise="a yes from before the question runs nothing",
        file="nanoloop/approvals.py",
        old='return "early" if not answer.code and _is_early(approval, answer.message) else None',
        new="return None",
        test="tests/test_approvals.py -k written_before_the_question",
    ),
    Mutation(
        promise="a yes from before the question was told runs nothing",
        file="nanoloop/turn.py",
        old="is_told=True, asked_at=now)",
        new="is_told=True)",
        test="tests/test_approvals.py -k held_up",
    ),
    Mutation(
        promise="a yes with further words runs nothing",
        file="nanoloop/approvals.py",
        old='if answer.word == "yes" and answer.rest:',
        new="if False:",
        test="tests/test_approvals.py -k anything_but_the_number",
    ),
    Mutation(
        promise="a button of another question runs nothing",
        file="nanoloop/approvals.py",
        old='if found is not None and answer.code in {"", found.code}:',
        new="if found is not None:",
        test="tests/test_approvals.py -k not_the_askers_own",
    ),
    Mutation(
        promise="nothing joins a yes",
        file="nanoloop/approvals.py",
        old="timing = (BURST, STEERS, NOT_BEFORE)",
        new="timing = ()",
        test="tests/test_approvals_found.py -k right_behind_a_yes",
    ),
    Mutation(
        promise="a permission holds for nobody else's words",
        file="nanoloop/tools/effects.py",
        old="return askers[0] if askers and all(each == askers[0] for each in askers) else {}",
        new="return askers[0] if askers else {}",
        test="tests/test_approvals_found.py -k somebody_elses_words",
    ),
    Mutation(
        promise="a yes waits for a process that serves the chat",
        file="nanoloop/chat.py",
        old="if self._is_here(entry) or (is_for_loop(entry) and not is_for_turn(entry)):",
        new="if self._is_here(entry) or is_for_loop(entry):",
        test="tests/test_approvals_found.py -k a_yes_waits_for_a_process",
    ),
    Mutation(
        promise="a revoked permission does not come back",
        file="nanoloop/session/approvals.py",
        old="told = replace(known, allowed=old.allowed,",
        new="told = replace(known, allowed=known.allowed or old.allowed,",
        test="tests/test_approvals_found.py -k revoked",
    ),
    Mutation(
        promise="a call whose message was edited is asked about anew",
        file="nanoloop/loop.py",
        old='        withdraw(session, "edited", lambda each: name in each.messages)',
        new="        pass",
        test="tests/test_approvals.py -k edited_message_is",
    ),
    Mutation(
        promise="a call whose question was erased is not run",
        file="nanoloop/approvals.py",
        old="if not asked or asked[0].type == ERASED:",
        new="if not asked:",
        test="tests/test_approvals.py -k taken_back",
    ),
    Mutation(
        promise="what nobody approved in time is given up",
        file="nanoloop/exchange.py",
        old="            expire(session, utc_now().timestamp())",
        new="            pass",
        test="tests/test_approvals.py -k given_up_with_the_next",
    ),
    Mutation(
        promise="the numbers of calls go on in the next conversation",
        file="nanoloop/session/approvals.py",
        old="max(known.last, old.last)",
        new="known.last",
        test="tests/test_approvals.py -k questions_of_the_one_before",
    ),
    Mutation(
        promise="a permission holds for the person who gave it",
        file="nanoloop/tools/approval.py",
        old="        and (each.patterns is not None or is_same_person(each.asker, asker))\n",
        new="",
        test="tests/test_approvals.py -k person_who_gave_it",
    ),
    Mutation(
        promise="patterns are the operators' to allow",
        file="nanoloop/approvals.py",
        old='if permission and permission.patterns is not None and answer.message.rank == "user":',
        new="if False:",
        test="tests/attack/test_approvals.py -k no_operator",
    ),
    Mutation(
        promise="a pattern covers all arguments",
        file="nanoloop/tools/approval.py",
        old="return arguments.keys() == globs.keys() and all(",
        new="return all(",
        test="tests/attack/test_approvals.py -k does_not_name",
    ),
    Mutation(
        promise="a report from a job is no command",
        file="nanoloop/intake.py",
        old=' or message.origin != "user"',
        new="",
        test="tests/test_approvals.py -k report_from_a_job",
    ),
    Mutation(
        promise="the same call is asked about once",
        file="nanoloop/tools/effects.py",
        old="        if twin is not None:",
        new="        if False:",
        test="tests/test_approvals.py -k not_asked_about_twice",
    ),
    Mutation(
        promise="a person sees all characters of what they approve",
        file="nanoloop/tools/approval.py",
        old="return character.isprintable() and not UNSEEN.match(character)",
        new="return True",
        test="tests/test_approvals.py -k in_full_and_runs_once",
    ),
)


def is_noticed(mutation, folder):
    """Whether the test turns red when this is broken."""
    path = folder / mutation.file
    whole = path.read_text(encoding="utf-8")
    if whole.count(mutation.old) != 1:
        sys.exit(
            f"{mutation.file} has {mutation.old!r} {whole.count(mutation.old)} times, not once"
        )
    path.write_text(whole.replace(mutation.old, mutation.new), encoding="utf-8")
    command = f"{sys.executable} -m pytest -qx --numprocesses=0 -m '' -o timeout={SECONDS} "
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        command + mutation.test,
        shell=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return process.wait(SECONDS + 10) == 1
    except subprocess.TimeoutExpired:  # it goes on whatever it is told
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    finally:
        path.write_text(whole, encoding="utf-8")


SHARE = 3
"""The short form breaks one of so many."""


def main(*words):
    is_short = "--short" in words
    word = " ".join(each for each in words if each != "--short")
    chosen = [mutation for mutation in MUTATIONS if word in mutation.promise]
    unnoticed = [each.promise for each in chosen if not is_there(each)]
    for promise in unnoticed:
        _say(f"MOVED {promise}: its text is not in the code once")
    if is_short:
        chosen = chosen[commits() % SHARE :: SHARE]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        free = SimpleQueue()
        for number in range(os.cpu_count()):
            free.put(copied_to(Path(name) / str(number)))

        def tried(mutation):
            folder = free.get()
            try:
                return is_noticed(mutation, folder)
            finally:
                free.put(folder)

        for mutation, noticed in zip(chosen, pool.map(tried, chosen), strict=True):
            unnoticed += [] if noticed else [mutation.promise]
            _say(f"{'red ' if noticed else 'LEFT'}  {mutation.promise}")
    _say(f"{len(chosen) - len(unnoticed)} of {len(chosen)} breakages are noticed")
    return len(unnoticed)


def is_there(mutation):
    return (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1


def commits():
    """How many commits there are, so that each has another third of the breakages."""
    count = subprocess.run(
        ("git", "rev-list", "--count", "HEAD"), cwd=ROOT, capture_output=True, check=False
    )
    return int(count.stdout or 0)


def copied_to(folder):
    folder.mkdir()
    for part in COPIED:
        source = ROOT / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / part)
    return folder


def _say(text):
    print(text, flush=True)  # noqa: T201 - this is a command


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
