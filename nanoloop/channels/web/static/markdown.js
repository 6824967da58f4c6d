// Renders Markdown as elements, complete or while it is still being written.

import { copyButton } from "./copy.js";
import { markdown, safeHref } from "./dialect.js";
import { el } from "./element.js";
import "./vendor/dompurify/purify.min.js";

/** The only elements that a text may create, whatever the parser returns. */
const TAGS = "p br strong em del code pre a ul ol li blockquote hr h3 h4 h5 h6 table thead tbody tr th td";
const ATTRIBUTES = ["class", "start", "data-level", "data-align"];
const { DOMPurify } = globalThis;
DOMPurify.setConfig({
	ALLOWED_TAGS: TAGS.split(" "),
	ALLOWED_ATTR: ["href", ...ATTRIBUTES],
	ADD_URI_SAFE_ATTR: ATTRIBUTES,
	ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
	ALLOW_DATA_ATTR: false,
	ALLOW_ARIA_ATTR: false,
	RETURN_DOM_FRAGMENT: true,
});

/** Renders a complete text. */
export function render(text) {
	return elements(blocks(text.replaceAll("\r", "")));
}

/** A growing text: finished blocks stay, only the last one is redrawn. */
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
		// At most one redraw per frame, however many pieces arrive.
		this.#frame ||= requestAnimationFrame(() => this.paint());
	}

	paint() {
		cancelAnimationFrame(this.#frame);
		this.#frame = 0;
		const text = this.text.slice(this.#done);
		const lines = text.split("\n");
		const found = blocks(text);
		// A block that begins on the last line, or a table there, may still join the block before it.
		const last = found.findLastIndex((block) => block.line < lines.length - 2);
		const open = found.slice(Math.max(last, 0));
		if (last > 0) this.#finish(found.slice(0, last), lines, open[0].line);
		this.#draw(open);
		this.painted();
	}

	#finish(done, lines, next) {
		this.#tail?.forEach((node) => node.remove());
		this.#tail = null;
		this.node.append(elements(done));
		this.#done += lines.slice(0, next).join("\n").length + 1;
	}

	#draw(open) {
		if (this.#tail?.length === 1 && open.length === 1 && extend(this.#tail[0], open[0])) return;
		const nodes = [...elements(open).childNodes];
		this.#tail?.forEach((node) => node.remove());
		this.node.append(...nodes);
		this.#tail = nodes;
	}
}

/** The outermost blocks in order, each with its first line and its tokens. */
function blocks(text) {
	const found = [];
	for (const token of markdown.parse(text, {})) {
		if (token.level === 0 && token.nesting >= 0) found.push({ line: token.map[0], tokens: [] });
		found.at(-1).tokens.push(token);
	}
	return found;
}

function elements(found) {
	const tokens = found.flatMap((block) => block.tokens);
	const fragment = DOMPurify.sanitize(markdown.renderer.render(tokens, markdown.options, {}));
	const each = (selector, dress) => fragment.querySelectorAll(selector).forEach(dress);
	each("a", dressLink);
	each("table", dressTable);
	each("pre", dressCode);
	each("li.task", dressTask);
	return fragment;
}

/** Long code grows at its end instead of being redrawn. */
function extend(node, { tokens: [token] }) {
	const words = token.type === "fence" && node.querySelector(":scope > pre > code")?.firstChild;
	const text = withoutEnd(token.content);
	if (!words?.length || !text.startsWith(words.data)) return false;
	words.appendData(text.slice(words.length));
	return true;
}

/** The closing fence does not count as part of the last line. */
const withoutEnd = (code) => code.replace(/\n$/, "");

function dressLink(link) {
	const href = safeHref(link.getAttribute("href"));
	if (!href) return link.replaceWith(...link.childNodes);
	link.rel = "noopener noreferrer nofollow";
	link.target = "_blank";
	if (!link.hasChildNodes()) link.append(href);
}

function dressTable(table) {
	const box = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" });
	table.replaceWith(box);
	box.append(table);
}

function dressCode(pre) {
	const { className, textContent } = pre.firstChild;
	const language = className.replace("language-", "");
	const words = el("code", {});
	words.append(withoutEnd(textContent)); // a text node also where it is empty: what follows is added to it
	const bar = el("div", { class: "bar" }, el("span", {}, language || "text"), copyButton("Copy code", () => words.textContent));
	const label = language ? `Code, ${language}` : "Code";
	const shown = el("pre", { tabindex: "0", "aria-label": label, role: "region" }, words);
	pre.replaceWith(el("div", { class: "code" }, bar, shown));
}

function dressTask(item) {
	const isDone = item.classList.contains("done");
	const label = isDone ? "done" : "to do";
	item.prepend(el("input", { type: "checkbox", disabled: true, checked: isDone, "aria-label": label }));
}
