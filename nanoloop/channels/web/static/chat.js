// One conversation on the page: shows its state on the server, and sends messages to it.
//
// The server's log is the truth; the stream only says when to look, and brings the text of
// an answer as it is written. So a lost event, a reload or a second tab changes nothing.

import { at, get, post } from "./api.js";
import { trying } from "./dialog.js";
import { button, byId, el, iconButton, on } from "./element.js";
import { Live } from "./live.js";
import { Log } from "./log.js";
import { noticeItem } from "./message.js";
import { newId, Outbox } from "./outbox.js";
import { Follower } from "./scroll.js";
import { Stream } from "./stream.js";

const ANNOUNCED = 1500;
const AGAIN_MS = 2000;
const LONGEST_MS = 2 ** 31; // of a timer
const CHOICE = /^\/(yes|no) \d+ [0-9a-f]{14}$/; // what a button sends

const tag = (text) => el("span", { class: "tag" }, text);

export class Chat {
	#stream = null;
	#now = Promise.resolve(); // the look at the log that goes on
	#next = null; // and the one after it
	#isPaging = false;
	#isGreeted = false;
	#expiry = 0;
	#pressed = null; // { id, buttons } of the last answer to a question

	/** `acts` has callbacks for: session, sessions, memory, shown, moved, gone, state, busy, edit. */
	constructor(acts) {
		this.acts = acts;
		this.id = null;
		this.isBusy = false;
		this.log = new Log(byId("log"), (text, pressed) => this.#choose(text, pressed));
		this.tail = byId("tail");
		this.follower = new Follower(byId("scroller"), () => this.#older());
		on("older", "click", () => this.#older());
		this.outbox = new Outbox(this.tail);
		this.live = new Live(this.tail, () => this.follower.keepUp());
	}

	/** Show this session, or none. */
	open(id) {
		this.#stream?.close();
		this.id = id;
		this.log.clear();
		this.live.clear();
		this.tail.replaceChildren();
		this.outbox.clear();
		this.#setBusy(false);
		this.follower.toEnd();
		this.#now = Promise.resolve();
		this.#isGreeted = false;
		const path = id ? at(id, "/events?list=1") : "api/events";
		const heard = (name, data) => this.id === id && this.#hear(name, data);
		this.#stream = new Stream(path, heard, (state) => this.#streamIs(state, id));
		this.outbox.unsent(id).forEach((message) => this.outbox.show(message));
	}

	reconnect() {
		this.#stream?.retry();
	}

	#streamIs(state, id) {
		this.acts.state(state);
		if (state === "open") return;
		this.#isGreeted = false;
		if (id) this.#refresh();
	}

	/** The session's title and agent, and whether it exists. */
	async #refresh() {
		const { id } = this;
		try {
			const session = await get(at(id));
			if (this.id === id) this.acts.session(session);
		} catch (error) {
			if (error.status === 404 && this.id === id) this.acts.gone();
		}
	}

	/** An event without a handler of its own means: look. */
	#hear(name, data) {
		if (this[`heard_${name}`]) this[`heard_${name}`](data);
		else this.#look();
	}

	async heard_hello({ busy, text, message_id: messageId, waiting }) {
		const { id } = this;
		this.acts.sessions();
		if (!id) return;
		this.#refresh();
		this.#setBusy(busy);
		this.live.set(text, messageId);
		this.acts.memory();
		await this.#look();
		if (id !== this.id) return;
		this.#isGreeted = true;
		if (!busy && !waiting) this.outbox.removeOthers();
		this.outbox.unsent(id).forEach((message) => this.#deliver(message));
	}

	heard_accepted({ message_id: id, text, attachments }) {
		if (!CHOICE.test(text)) this.outbox.show({ id, text, attachments });
		this.outbox.mark(id, null);
		this.#look();
	}

	heard_text(data) {
		if (!this.live.add(data)) this.#stream.again(); // a piece is missing: `hello` has them all
	}

	heard_turn({ state }) {
		this.#setBusy(state === "started");
		this.#look();
	}

	async heard_answer({ message_id: id, text, kind }) {
		await this.#look();
		this.acts.memory();
		const answer = this.log.list.querySelector(":scope > .answer:last-child .prose");
		byId("announcer").textContent = (kind === "answer" && answer ? answer.textContent : text).slice(0, ANNOUNCED);
		this.live.end(id);
		if (kind === "answer") this.outbox.remove(id); // a command, such as /yes
		else this.#askAgain(id);
		if (kind === "error" || (kind === "notice" && text !== "Stopped.")) this.#notice({ text, kind }, id);
	}

	heard_session({ moved_to: moved, deleted, ...session }) {
		if (deleted) this.acts.gone();
		else if (moved) this.acts.moved(moved);
		else this.acts.session(session);
	}

	heard_sessions({ id }) {
		this.acts.sessions();
		if (id && id === this.id) this.#refresh();
	}

	heard_memory() {
		this.acts.memory();
	}

	// The log

	/** Load the server's current state; calls made while a look is running share the next one. */
	#look() {
		this.#next ??= this.#now.then(() => {
			this.#next = null;
			this.#now = this.#fetch(this.id);
			return this.#now;
		});
		return this.#next;
	}

	async #fetch(id) {
		const page = id && (await trying(() => get(at(id, "/messages"))));
		if (page && this.id === id) this.#show(page);
	}

	#show(page) {
		if (this.follower.isFollowing) this.log.shorten();
		this.log.apply(page, ({ role, text }) => (role === "assistant" ? this.live.bodyOf(text) : null));
		this.live.logged(this.log.answered());
		page.messages.forEach((entry) => this.outbox.remove(entry.message_id));
		byId("older").hidden = this.log.before === null;
		this.#offer();
		this.#lookAtExpiry();
		this.acts.shown();
		this.follower.keepUp();
	}

	#lookAtExpiry() {
		clearTimeout(this.#expiry);
		const wait = this.log.expiry() - Date.now();
		if (wait < LONGEST_MS) this.#expiry = setTimeout(() => this.#look(), Math.max(wait, AGAIN_MS));
	}

	async #older() {
		if (this.#isPaging || this.log.before === null) return;
		this.#isPaging = true;
		const { id } = this;
		const page = await trying(() => get(at(id, `/messages?before=${this.log.before}`)));
		if (page && this.id === id) {
			this.follower.holding(() => this.log.prepend(page));
			byId("older").hidden = this.log.before === null;
			this.acts.shown();
		}
		this.#isPaging = false;
	}

	/** The actions for the last exchange: only there, and only while nothing is running. */
	#offer() {
		this.log.list.querySelectorAll(".last").forEach((node) => node.remove());
		const asked = !this.isBusy && this.outbox.isEmpty && this.log.last("user");
		if (!asked) return;
		const edit = iconButton("edit", "Edit and ask again", () => this.acts.edit(asked), { class: "quiet last" });
		this.log.itemOf(asked).querySelector(".meta").prepend(edit);
		const newest = this.log.last("user", "assistant", "approval");
		if (newest.role === "approval") return;
		const label = newest === asked ? "No answer yet. Try again" : "Try again";
		const again = button("retry", label, () => this.retry(), "quiet last");
		this.log.itemOf(newest).querySelector(".meta").append(again);
	}

	// Sending

	/** Send a message with files that are uploaded already. */
	send(text, attachments) {
		const message = { id: newId(), session: this.id, text, attachments };
		this.outbox.keep(message);
		this.#offer();
		this.follower.toEnd();
		// Otherwise the stream's `hello` brings it, so that nothing is missed.
		if (this.#isGreeted) this.#deliver(message);
		else this.outbox.mark(message.id, tag("waits for the connection"));
	}

	/** Send the answer to a question; the log says when it counts. */
	async #choose(text, pressed) {
		const buttons = [...pressed.parentElement.children];
		buttons.forEach((each) => { each.disabled = true; });
		this.#pressed = { id: newId(), buttons };
		const message = { text, message_id: this.#pressed.id };
		if (!await trying(() => post(at(this.id, "/messages"), message))) this.#askAgain(message.message_id);
		if (matchMedia("(hover: hover)").matches) byId("text").focus(); // the buttons go away
	}

	/** The press of this id did not count. */
	#askAgain(id) {
		if (this.#pressed?.id === id) this.#pressed.buttons.forEach((each) => { each.disabled = false; });
	}

	async #deliver(message) {
		const { id, session, text, attachments } = message;
		this.outbox.mark(id, tag("sending …"));
		try {
			await post(at(session, "/messages"), { text, message_id: id, attachments: attachments.map((each) => each.id) });
			this.outbox.mark(id, null);
		} catch (error) {
			this.#failed(message, error);
		}
	}

	#failed(message, error) {
		if (error.status === 0) {
			this.outbox.mark(message.id, tag("waits for the connection"));
			setTimeout(() => this.#stream.again(), AGAIN_MS); // with `hello` it is sent again
			return;
		}
		const again = button("retry", "Send again", () => this.#deliver(message));
		const drop = button("close", "Discard", () => this.outbox.remove(message.id));
		this.outbox.mark(message.id, el("div", { class: "trouble", role: "alert" }, el("span", {}, error.message), again, drop));
	}

	/** A notice is shown after the message it is about, which the log may not contain. */
	#notice(notice, id) {
		const asked = this.outbox.take(id); // still there: a command, or a message that was refused
		if (asked) this.log.list.append(asked.item);
		const item = noticeItem(notice, notice.kind === "error" && button("retry", "Try again", () => {
			item.remove();
			asked?.item.remove();
			return asked ? this.send(asked.message.text, asked.message.attachments) : this.retry();
		}));
		this.log.list.append(item);
		this.#offer();
		this.follower.keepUp();
	}

	stop() {
		return trying(() => post(at(this.id, "/stop")));
	}

	/** Undo the last exchange and ask again, with a new text if there is one. */
	async retry(text) {
		const message = { message_id: newId(), ...(text && { text }) };
		this.log.list.querySelectorAll(".last, .error").forEach((node) => node.remove());
		const done = await trying(() => post(at(this.id, "/retry"), message));
		if (!done) this.#offer();
		this.follower.toEnd();
		this.#look();
		return done !== undefined;
	}

	#setBusy(isBusy) {
		this.isBusy = isBusy;
		this.live.setBusy(isBusy);
		this.acts.busy(isBusy);
		this.#offer();
	}
}
