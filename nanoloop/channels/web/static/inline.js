// Inline Markdown as nodes, in one pass and bounded: emphasis, code, links, line breaks.
//
// Text becomes text nodes and nothing else. A link needs a scheme that can do no harm; a picture
// becomes a link, so that no answer makes the browser fetch anything by itself.

import { el } from "./element.js";

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const SPECIAL = /[\\`*_~[\]!<\n]|https?:\/\//g;
const TARGET =
	/\(\s{0,9}(?:<([^<>\n]{0,2000})>|((?:[^\s()<>]|\([^\s()<>]{0,500}\)){0,2000}))(?:\s{1,9}(?:"[^"\n]{0,500}"|'[^'\n]{0,500}'))?\s{0,9}\)/y;
const ANGLED = /<(?:(https?:\/\/[^\s<>]{1,2000})|br ?\/?)>/iy;
const BARE = /https?:\/\/[^\s<>"`“”’»。，、）】」]{1,2000}/y;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}_]/u;
const DEEPEST = 24;

/** The address, where following it can do no harm; else null. */
function safeHref(address) {
	try {
		const url = new URL(address);
		return SCHEMES.has(url.protocol) ? url.href : null;
	} catch {
		return null; // relative, or no address at all
	}
}

export function link(href, ...label) {
	return el("a", { href, rel: "noopener noreferrer nofollow", target: "_blank" }, ...label);
}

export function inline(text) {
	return new Inline(text).run();
}

/** What came since a mark; words that follow each other are one text. */
class Frame {
	constructor(mark) {
		this.mark = mark;
		this.node = document.createDocumentFragment();
		this.words = "";
	}

	add(what) {
		if (typeof what === "string") this.words += what;
		else this.whole().append(what);
	}

	whole() {
		if (this.words) this.node.append(this.words);
		this.words = "";
		return this.node;
	}
}

class Inline {
	constructor(text) {
		this.text = text;
		this.at = 0;
		// What is open: each frame holds what came since its mark, until the mark is closed.
		this.frames = [new Frame("")];
		this.unclosedTicks = new Set();
	}

	run() {
		for (;;) {
			SPECIAL.lastIndex = this.at;
			const hit = SPECIAL.exec(this.text);
			this.say(this.text.slice(this.at, hit ? hit.index : undefined));
			if (!hit) break;
			this.at = hit.index;
			this.at += this.take(hit[0]);
		}
		while (this.frames.length > 1) this.unwrap();
		return this.frames[0].whole();
	}

	say(...what) {
		what.forEach((each) => this.frames.at(-1).add(each));
	}

	/** Deal with the sign at hand; how many characters it took. */
	take(sign) {
		switch (sign[0]) {
			case "\\":
				return this.escape();
			case "`":
				return this.code();
			case "[":
				return this.open("[");
			case "!":
				return this.text[this.at + 1] === "[" ? this.open("![") : this.literal("!");
			case "]":
				return this.closeLink();
			case "<":
				return this.angled();
			case "\n":
				this.say(el("br"));
				return 1;
			case "h":
				return this.bare();
			default:
				return this.emphasis(sign);
		}
	}

	literal(text) {
		this.say(text);
		return text.length;
	}

	open(mark) {
		if (this.frames.length > DEEPEST) return this.literal(mark);
		this.frames.push(new Frame(mark));
		return mark.length;
	}

	/** The newest mark was none after all. */
	unwrap() {
		const frame = this.frames.pop();
		this.say(frame.mark, frame.whole());
	}

	close(index, wrap) {
		while (this.frames.length > index + 1) this.unwrap();
		this.say(wrap(this.frames.pop().whole()));
	}

	escape() {
		const next = this.text[this.at + 1] ?? "";
		if (next === "\n") this.say(el("br"));
		else if (PUNCTUATION.test(next)) this.say(next);
		else return this.literal("\\");
		return 2;
	}

	code() {
		const ticks = runOf(this.text, this.at, "`");
		const end = this.unclosedTicks.has(ticks) ? -1 : closingTicks(this.text, this.at + ticks, ticks);
		if (end < 0) {
			this.unclosedTicks.add(ticks); // not looked for again
			return this.literal("`".repeat(ticks));
		}
		const code = this.text.slice(this.at + ticks, end).replaceAll("\n", " ");
		const padded = code.startsWith(" ") && code.endsWith(" ") && code.trim();
		this.say(el("code", {}, padded ? code.slice(1, -1) : code));
		return end + ticks - this.at;
	}

	emphasis(sign) {
		const length = runOf(this.text, this.at, sign);
		const before = this.text[this.at - 1] ?? " ";
		const after = this.text[this.at + length] ?? " ";
		const isWordy = sign === "_"; // snake_case stays as it is
		const mayClose = before.trim() && !(isWordy && WORD.test(after));
		const mayOpen = after.trim() && !(isWordy && WORD.test(before));
		let left = length;
		while (mayClose && left) {
			const index = this.openMark(sign, left);
			if (index < 0) break;
			const { mark } = this.frames[index];
			const tag = { 1: "em", 2: sign === "~" ? "del" : "strong" }[mark.length];
			this.close(index, (node) => el(tag, {}, node));
			left -= mark.length;
		}
		while (mayOpen && left >= (sign === "~" ? 2 : 1) && this.frames.length <= DEEPEST) {
			left -= this.open(sign.repeat(Math.min(left, 2)));
		}
		this.say(sign.repeat(left));
		return length;
	}

	/** Where the newest mark of this sign stands, no longer than `most`, within the link going on. */
	openMark(sign, most) {
		for (let index = this.frames.length - 1; index > 0; index -= 1) {
			const { mark } = this.frames[index];
			if (isLink({ mark })) return -1;
			if (mark[0] === sign && mark.length <= most) return index;
		}
		return -1;
	}

	closeLink() {
		const index = this.frames.findLastIndex(isLink);
		if (index < 0) return this.literal("]");
		const target = matchAt(TARGET, this.text, this.at + 1);
		const href = target && !this.frames[index].dead && safeHref(target[1] ?? target[2]);
		if (!href) {
			while (this.frames.length > index) this.unwrap();
			return this.literal("]");
		}
		for (const frame of this.frames.slice(0, index)) frame.dead = true; // no link within a link
		const isPicture = this.frames[index].mark === "![";
		this.close(index, (node) => link(href, isPicture && "🖼 ", node.hasChildNodes() ? node : href));
		return 1 + target[0].length;
	}

	/** An address between brackets, and the one tag that models like to write. */
	angled() {
		const found = matchAt(ANGLED, this.text, this.at);
		if (!found) return this.literal("<");
		this.say(found[1] ? link(safeHref(found[1]), found[1]) : el("br"));
		return found[0].length;
	}

	/** The address without the punctuation of the sentence around it. */
	bare() {
		const isWithin = WORD.test(this.text[this.at - 1] ?? " ") || this.frames.some(isLink);
		let [found] = (!isWithin && matchAt(BARE, this.text, this.at)) || [""];
		while (/[.,;:!?*_~'\]]$/.test(found) || (found.endsWith(")") && !isBalanced(found))) {
			found = found.slice(0, -1);
		}
		const href = safeHref(found);
		if (!href) return this.literal("http");
		this.say(link(href, found));
		return found.length;
	}
}

const isLink = ({ mark }) => mark.endsWith("[");

function matchAt(pattern, text, at) {
	pattern.lastIndex = at;
	return pattern.exec(text);
}

function runOf(text, at, sign) {
	let end = at;
	while (text[end] === sign) end += 1;
	return end - at;
}

function closingTicks(text, from, ticks) {
	for (let at = text.indexOf("`", from); at >= 0; ) {
		const run = runOf(text, at, "`");
		if (run === ticks) return at;
		at = text.indexOf("`", at + run);
	}
	return -1;
}

function isBalanced(text) {
	return text.split("(").length >= text.split(")").length;
}
