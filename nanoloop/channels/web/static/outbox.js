// Messages on their way: below the log until it has them, kept over a reload, never sent twice.

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

	/** Those of this tab that the log has not yet. */
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

	/** Say how it stands with it; null where all is well. */
	mark(id, state) {
		const item = this.#shown.get(id)?.item;
		item?.querySelector(":scope > .meta").replaceChildren(...(state ? [state] : []));
		item?.classList.toggle("waiting", state !== null);
	}

	remove(id) {
		this.take(id)?.item.remove();
	}

	/** What other tabs sent, and the log should have by now. */
	removeOthers() {
		const own = all().map(({ id }) => id);
		[...this.#shown.keys()].filter((id) => !own.includes(id)).forEach((id) => this.remove(id));
	}

	/** What is shown of it, which is the caller's from now on. */
	take(id) {
		const found = this.#shown.get(id);
		if (found) inTab.set(KEY, all().filter((message) => message.id !== id));
		this.#shown.delete(id);
		return found;
	}
}

/** The id by which the server knows a message again. */
export function newId() {
	const bytes = crypto.getRandomValues(new Uint8Array(16)); // over plain HTTP there is no other
	return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
