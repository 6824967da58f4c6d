// Markdown as elements, whole or while it is still being written.

import { parse } from "./blocks.js";
import { copyButton } from "./copy.js";
import { el } from "./element.js";
import { inline } from "./inline.js";

/** A finished text. */
export function render(text) {
	const fragment = document.createDocumentFragment();
	fragment.append(...parse(text.replaceAll("\r", "").split("\n")).map(element));
	return fragment;
}

/** A text that grows: finished blocks are left alone, only the last one is drawn again. */
export class Growing {
	#done = 0;
	#tail = null;
	#frame = 0;

	constructor(node, painted = () => {}) {
		this.node = node;
		this.text = "";
		this.painted = painted;
	}

	add(piece) {
		this.text += piece.replaceAll("\r", "");
		// One drawing a frame, however many pieces come.
		this.#frame ||= requestAnimationFrame(() => this.paint());
	}

	paint() {
		cancelAnimationFrame(this.#frame);
		this.#frame = 0;
		const lines = this.text.slice(this.#done).split("\n");
		const found = parse(lines);
		// What begins on the last line, or is a table by that line, may yet join the block before.
		const last = found.findLastIndex((block) => block.line < lines.length - 2);
		const open = found.slice(Math.max(last, 0));
		if (last > 0) this.#finish(found.slice(0, last), lines, open[0].line);
		this.#draw(open);
		this.painted();
	}

	#finish(blocks, lines, next) {
		this.#tail?.forEach((node) => node.remove());
		this.#tail = null;
		this.node.append(...blocks.map(element));
		this.#done += lines.slice(0, next).join("\n").length + 1;
	}

	#draw(open) {
		if (this.#tail?.length === 1 && open.length === 1 && extend(this.#tail[0], open[0])) return;
		const nodes = open.map(element);
		this.#tail?.forEach((node) => node.remove());
		this.node.append(...nodes);
		this.#tail = nodes;
	}
}

/** Long code grows at its end instead of being drawn anew. */
function extend(node, block) {
	const words = block.kind === "code" && node.querySelector(":scope > pre > code")?.firstChild;
	if (!words?.length || !block.text.startsWith(words.data)) return false;
	words.appendData(block.text.slice(words.length));
	return true;
}

const MAKERS = {
	paragraph: (block) => el("p", {}, inline(block.text)),
	heading: (block) => el(`h${Math.min(block.level + 2, 6)}`, { "data-level": block.level }, inline(block.text)),
	rule: () => el("hr"),
	quote: (block) => el("blockquote", {}, block.blocks.map(element)),
	list,
	table,
	code,
};

function element(block) {
	return MAKERS[block.kind](block);
}

function list({ isOrdered, start, isLoose, items }) {
	const props = { class: isLoose && "loose", start: isOrdered && start !== 1 && `${start}` };
	return el(isOrdered ? "ol" : "ul", props, items.map(item));
}

function item({ isDone, blocks }) {
	const [first, ...rest] = blocks;
	const words = first?.kind === "paragraph" ? inline(first.text) : first && element(first);
	const label = isDone ? "done" : "to do";
	const box = isDone !== null && el("input", { type: "checkbox", disabled: true, checked: isDone, "aria-label": label });
	return el("li", { class: isDone !== null && "task" }, box, words, rest.map(element));
}

function table({ head, align, rows }) {
	const row = (tag) => (cells) =>
		el("tr", {}, cells.map((cell, at) => el(tag, { "data-align": align[at] || null }, inline(cell))));
	const body = rows.length > 0 && el("tbody", {}, rows.map(row("td")));
	const whole = el("table", {}, el("thead", {}, row("th")(head)), body);
	return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, whole);
}

function code({ language, text }) {
	const words = el("code", {});
	words.append(text); // a text node also where it is empty: what follows is added to it
	const bar = el("div", { class: "bar" }, el("span", {}, language || "text"), copyButton("Copy code", () => words.textContent));
	const label = language ? `Code, ${language}` : "Code";
	return el("div", { class: "code" }, bar, el("pre", { tabindex: "0", "aria-label": label, role: "region" }, words));
}
