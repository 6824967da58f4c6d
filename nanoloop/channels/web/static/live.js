// The answer being written: its text as it arrives, and a sign of life before that.

import { el } from "./element.js";
import { Growing } from "./markdown.js";
import { liveItem, prose } from "./message.js";

const NOBODY = { messageId: null, said: "", signs: 0, inLog: 0 };

export class Live {
	#turn = { ...NOBODY };
	#drawn = null; // { item, body, words: Growing }
	#isBusy = false;
	#dots = el("li", {}, el("div", { class: "dots", role: "status", "aria-label": "An answer is on its way" },
		el("span"), el("span"), el("span")));

	constructor(list, painted) {
		this.list = list;
		this.painted = painted;
	}

	/** Adds pieces in order; returns false if an earlier one was lost. */
	add({ piece, at, message_id: messageId }) {
		if (this.#turn.messageId !== messageId) this.#begin(messageId);
		if (at !== this.#turn.signs) return false;
		this.#hear(piece);
		return true;
	}

	/** The turn's whole text so far. */
	set(text, messageId) {
		if (this.#turn.messageId !== messageId || !text.startsWith(this.#turn.said)) this.#begin(messageId);
		this.#hear(text.slice(this.#turn.said.length));
	}

	/** The turn that answers this message has ended. */
	end(messageId) {
		if (messageId === this.#turn.messageId) this.#begin(null);
	}

	/** The log now contains these answers of the turn, so they are not shown twice. */
	logged(texts) {
		const known = texts.join("\n\n");
		const { said } = this.#turn;
		if (known.startsWith(said) || said.startsWith(known)) this.#turn.inLog = known.length;
		this.#draw();
	}

	/** Returns the element that already shows this text, if any. */
	bodyOf(text) {
		if (this.#drawn?.words.text.trim() !== text.trim()) return null;
		this.#drawn.words.paint();
		return this.#drawn.body;
	}

	setBusy(isBusy) {
		this.#isBusy = isBusy;
		this.#showDots();
	}

	clear() {
		this.#begin(null);
		this.setBusy(false);
	}

	#begin(messageId) {
		this.#turn = { ...NOBODY, messageId };
		this.#draw();
	}

	#hear(fresh) {
		this.#turn.said += fresh;
		this.#turn.signs += [...fresh].length; // as the server counts: some are two places here
		this.#draw();
	}

	#draw() {
		const text = this.#turn.said.slice(this.#turn.inLog).trimStart();
		const before = this.#drawn?.words.text ?? "";
		if (!text.startsWith(before) || !text) this.#erase();
		if (text) {
			this.#drawn ??= this.#place();
			this.#drawn.words.add(text.slice(this.#drawn.words.text.length));
		}
		this.#showDots();
	}

	#place() {
		const body = prose("");
		const item = liveItem(body);
		const { messageId } = this.#turn;
		const asked = messageId && this.list.querySelector(`[data-message="${CSS.escape(messageId)}"]`);
		if (asked) asked.after(item); // a question that waits for its place in the log comes first
		else this.list.prepend(item);
		return { item, body, words: new Growing(body, this.painted) };
	}

	#erase() {
		this.#drawn?.item.remove();
		this.#drawn = null;
	}

	#showDots() {
		if (this.#isBusy && !this.#drawn) this.list.append(this.#dots);
		else this.#dots.remove();
	}
}
