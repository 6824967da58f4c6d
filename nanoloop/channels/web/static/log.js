// The list of messages: only changed entries are redrawn, older pages are loaded on demand.

import { messageItem } from "./message.js";

/** Beyond this number, the oldest entries leave the page; scrolling up loads them again. */
const MOST = 300;
const KEPT = 100;

export class Log {
	#shown = new Map(); // seq → { entry, item, said }, in order
	#results = new Map(); // call id → the result's entry

	/** `choose` is called with the text of a pressed button, and the button. */
	constructor(list, choose) {
		this.list = list;
		this.choose = choose;
		this.clear();
	}

	clear() {
		this.#shown.clear();
		this.#results.clear();
		this.list.replaceChildren();
		/** The entry before which older ones can be loaded; null if all are shown. */
		this.before = null;
	}

	get isEmpty() {
		return this.#shown.size === 0;
	}

	#entries() {
		return [...this.#shown.values()].map(({ entry }) => entry);
	}

	last(...roles) {
		return this.#entries().findLast((entry) => roles.includes(entry.role));
	}

	/** The answers since the last question, step by step. */
	answered() {
		const entries = this.#entries();
		const asked = entries.findLastIndex(({ role }) => role === "user" || role === "approval");
		return entries.slice(asked + 1).filter(({ role }) => role === "assistant").map(({ text }) => text);
	}

	/** When the next question about a call expires, in milliseconds, or Infinity. */
	expiry() {
		const asks = this.#entries().flatMap((entry) => entry.asks ?? []).filter(({ state }) => state === "asked");
		return Math.min(...asks.map(({ expires_at: until }) => Date.parse(until)));
	}

	itemOf(entry) {
		return this.#shown.get(entry.seq).item;
	}

	/** Shows the newest page from the server; `ready` finds elements that are drawn already. */
	apply({ messages, before }, ready) {
		const first = messages[0]?.seq ?? Infinity;
		const newest = [...this.#shown.keys()].at(-1) ?? -Infinity;
		if (before !== null && newest < first) this.clear(); // what is between is not known
		if (this.isEmpty || before === null) this.before = before;
		const there = new Set(messages.map(({ seq }) => seq));
		const isGone = (seq) => !there.has(seq) && (seq >= first || before === null);
		[...this.#shown.keys()].filter(isGone).forEach((seq) => this.#remove(seq));
		for (const entry of messages) this.#put(entry, (item) => this.list.append(item), ready);
	}

	/** Adds an older page above the others. */
	prepend({ messages, before }) {
		this.before = before;
		const newer = [...this.#shown];
		const top = this.list.firstChild;
		this.#shown.clear();
		for (const entry of messages) this.#put(entry, (item) => this.list.insertBefore(item, top));
		for (const [seq, shown] of newer) this.#shown.set(seq, shown);
	}

	#put(entry, place, ready = () => null) {
		if (entry.role === "tool_result") {
			// A result is shown with its call, now or once the page with that call is loaded.
			this.#results.set(entry.call_id, entry);
			const call = this.#entries().find(({ role, call_id: id }) => role === "tool_call" && id === entry.call_id);
			if (call) this.#put(call, place);
			return;
		}
		const result = this.#results.get(entry.call_id);
		const said = JSON.stringify([entry, result]);
		const known = this.#shown.get(entry.seq);
		if (known?.said === said) return;
		const item = messageItem(entry, { ready: ready(entry), result, choose: this.choose });
		if (known) replace(known.item, item);
		else place(item);
		this.#shown.set(entry.seq, { entry, item, said });
	}

	#remove(seq) {
		this.#shown.get(seq).item.remove();
		this.#shown.delete(seq);
	}

	/** Removes the oldest entries if there are very many. */
	shorten() {
		if (this.#shown.size <= MOST) return;
		[...this.#shown.keys()].slice(0, -KEPT).forEach((seq) => this.#remove(seq));
		[this.before] = this.#shown.keys();
	}

	/** Marks each entry with its place in the memory. */
	mark(placeOf) {
		for (const [seq, { item }] of this.#shown) item.dataset.place = placeOf(seq);
	}
}

/** Keeps open details open. */
function replace(old, item) {
	const details = item.querySelector("details");
	if (details) details.open = old.querySelector("details").open;
	item.dataset.place = old.dataset.place ?? "";
	old.replaceWith(item);
}
