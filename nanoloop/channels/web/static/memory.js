// The memory panel: the log as a bar, its parts, and the summary with its ledger and receipts.

import { at, call, get, post } from "./api.js";
import { trying } from "./dialog.js";
import { button, byId, el, on, soft } from "./element.js";
import { render } from "./markdown.js";
import { counted, number, shortTime } from "./words.js";

/** Lists up to this length are open at first. */
const OPEN = 12;
const WAITS = { failure: "another try", breaker: "a model", budget: "tomorrow’s tokens", small: "more to be said" };

export class Memory {
	#id = null;
	#asked = 0;
	#known = null;
	#isEditing = false;

	/** `moved` is called when entries may have moved to another part. */
	constructor(moved) {
		this.moved = moved;
		on("summarise", "click", () => this.#summarise());
	}

	open(id) {
		this.#id = id;
		this.#known = null;
		this.#isEditing = false;
		byId("memory-body").hidden = true;
	}

	async load() {
		this.#asked += 1;
		const [id, asked] = [this.#id, this.#asked];
		const known = id && (await trying(() => get(at(id, "/memory"))));
		if (known && asked === this.#asked && id === this.#id) this.#show(known);
	}

	/** An entry's part: in the summary, pending, or seen word for word. */
	placeOf(seq) {
		if (!this.#known) return "";
		const { covered, window } = this.#known;
		if (seq <= covered) return "covered";
		return window.count && seq < window.first ? "pending" : "window";
	}

	#show(known) {
		this.#known = known;
		const { running, waiting, ledger, pins, receipts } = known;
		const parts = partsOf(known);
		byId("memory-body").hidden = false;
		byId("bar").replaceChildren(...parts.filter(({ count }) => count).map((part) => barPart(part, running)));
		byId("legend").replaceChildren(...parts.flatMap(legendRow));
		byId("memory-says").textContent = sentence(...parts.map(({ count }) => count));
		const waits = waiting && `The next summary waits for ${WAITS[waiting]}.`;
		byId("memory-state").textContent = running ? "A summary is being written. No answer waits for it." : waits;
		byId("memory-state").classList.toggle("working", running);
		byId("memory-dot").hidden = !running;
		byId("summarise").disabled = running;
		if (!this.#isEditing) this.#showSummary();
		section("ledger", "Ledger", ledger.map(({ kind, ...item }) => exactItem(kind, item)));
		section("pins", "Pinned", pins.map(({ who, ...item }) => exactItem(who, item)));
		section("receipts", "Receipts", receipts.map(receiptItem).reverse());
		this.moved();
	}

	// The summary

	#showSummary(...shown) {
		const { summary: { text }, pending } = this.#known;
		const words = text.split(/\s+/).filter(Boolean).length;
		const edit = button("edit", "Edit", () => this.#edit());
		edit.id = "edit-summary";
		const none = pending.count ? "There is none yet." : "Nothing has left the window yet: there is nothing to summarise.";
		byId("summary").replaceChildren(
			el("div", { class: "head" }, el("h3", {}, "Summary"), text && !shown.length && [soft(counted(words, "word")), edit]),
			...(shown.length ? shown : [el("div", { class: text ? "prose" : "soft", dir: "auto" }, text ? render(text) : none)]),
		);
	}

	#edit() {
		this.#isEditing = true;
		const area = el("textarea", { "aria-label": "Summary", rows: "12", dir: "auto" }, this.#known.summary.text);
		const actions = [button(null, "Cancel", () => this.#endEdit()), el("button", { class: "strong" }, "Save")];
		const onsubmit = (event) => {
			event.preventDefault();
			this.#save(area.value);
		};
		this.#showSummary(el("form", { onsubmit }, area, el("div", { class: "actions" }, actions)));
		area.focus();
	}

	#endEdit() {
		this.#isEditing = false;
		this.#showSummary();
		byId("edit-summary")?.focus();
	}

	async #save(text) {
		const known = await trying(() => call("PUT", at(this.#id, "/memory/summary"), { json: { text } }));
		if (!known) return;
		this.#show(known);
		this.#endEdit();
	}

	async #summarise() {
		await trying(() => post(at(this.#id, "/memory/summarise")));
		this.load();
	}
}

/** The three parts of the log, oldest first. */
function partsOf({ log, covered, pending, window, tokens }) {
	const inSummary = Math.max(0, log.entries - pending.count - window.count);
	return [
		{ place: "covered", name: "In the summary", first: log.first, last: covered, count: inSummary, size: tokens.summary },
		{ place: "pending", name: "Pending", ...pending, size: tokens.pending },
		{ place: "window", name: "Word for word", ...window, size: tokens.window },
	];
}

function barPart({ place, count }, isRunning) {
	const part = el("span", { class: `${place}${isRunning && place === "pending" ? " running" : ""}` });
	part.style.flexGrow = count;
	return part;
}

function legendRow({ place, name, first, last, count, size }) {
	const range = count ? `#${first}–${last}` : "none";
	return [
		el("dt", { class: place }, name),
		el("dd", {}, el("span", {}, range), el("b", {}, number(count)), el("span", {}, count > 0 && `${number(size)} tokens`)),
	];
}

function sentence(covered, pending, window) {
	if (!covered && !pending) return "Everything still fits: the model reads all of it word for word.";
	const waits = pending ? ` ${number(pending)} wait${pending === 1 ? "s" : ""} to be summarised.` : "";
	const before = covered ? "the summary in place of what came before" : "no summary yet";
	return `The model reads the newest ${number(window)} word for word, and ${before}.${waits} The log keeps everything.`;
}

/** Keeps open details open. */
function section(id, title, items) {
	const open = byId(id).firstChild?.open ?? items.length <= OPEN;
	const head = el("summary", {}, el("h3", {}, title), soft(number(items.length)));
	byId(id).replaceChildren(...(items.length ? [el("details", { open }, head, el("ul", {}, items))] : []));
}

function exactItem(kind, { text, seq }) {
	return el("li", {}, el("span", { class: "kind" }, kind), el("span", { dir: "auto" }, text), soft(`#${seq}`));
}

function receiptItem(receipt) {
	const { first_seq: first, last_seq: last, messages, model, seconds, time } = receipt;
	const tokens = `${number(receipt.tokens_in)} → ${number(receipt.tokens_out)} tokens`;
	return el("li", { class: "receipt" }, el("b", {}, `#${first}–${last}`),
		` ${counted(messages, "message")} · ${tokens} · ${seconds.toFixed(1)} s `, soft(model, ", ", shortTime(time)));
}
