// Messages being sent: shown below the log until it has them, kept over reloads, never sent twice.

import { el } from "./element.js";
import { inTab } from "./kept.js";
import { userItem } from "./message.js";

const KEY = "outbox";
const all = () => inTab.get(KEY) ?? [];

export class Outbox {
	#shown = new Map(); // message id → { item, message }

	constructor(list) {
		this.list = list;
	}

	get isEmpty() {
		return this.#shown.size === 0;
	}

	clear() {
		this.#shown.clear();
	}

	/** This tab's messages that the log does not have yet. */
	unsent(session) {
		return all().filter((message) => message.session === session);
	}

	keep(message) {
		inTab.set(KEY, [...all(), message]);
		this.show(message);
	}

	show(message) {
		if (this.#shown.has(message.id)) return;
		const item = userItem(message, el("div", { class: "meta" }));
		item.dataset.message = message.id;
		this.#shown.set(message.id, { item, message });
		this.list.append(item);
	}

	/** Show a message's state; null if all is well. */
	mark(id, state) {
		const item = this.#shown.get(id)?.item;
		item?.querySelector(":scope > .meta").replaceChildren(...(state ? [state] : []));
		item?.classList.toggle("waiting", state !== null);
	}

	remove(id) {
		this.take(id)?.item.remove();
	}

	/** Messages from other tabs, which the log should have by now. */
	removeOthers() {
		const own = all().map(({ id }) => id);
		[...this.#shown.keys()].filter((id) => !own.includes(id)).forEach((id) => this.remove(id));
	}

	/** Hands a message's element over to the caller. */
	take(id) {
		const found = this.#shown.get(id);
		if (found) inTab.set(KEY, all().filter((message) => message.id !== id));
		this.#shown.delete(id);
		return found;
	}
}

/** The id by which the server recognises a message that is sent again. */
export function newId() {
	const bytes = crypto.getRandomValues(new Uint8Array(16)); // over plain HTTP there is no other
	return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
