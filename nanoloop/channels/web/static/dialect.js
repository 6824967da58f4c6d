// Markdown as models write it and people expect it, where markdown-it differs by itself.
//
// Text stays text: HTML in it is shown, not interpreted. A picture becomes a link, so that no
// answer makes the browser fetch anything. Later text never changes the meaning of earlier blocks.

import "./vendor/markdown-it/markdown-it.umd.min.js";

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const ITEM = /(?:[-*+]|\d{1,9}[.)])(?: {1,4}(?=\S)|[ \t])/y;
const CODE_WITH_BAR = /`[^`]+`/g;
const BREAK = /<br ?\/?>/iy;
const TASK = /^\[([ xX])\] +/;
/** Stands for a bar that is not a border; markdown-it has removed this character from the input. */
const HIDDEN_BAR = "\0";
const LEFT_OUT = ["reference", "code", "lheading", "entity"];
const DEEPEST = 20;

export const markdown = globalThis.markdownit({ linkify: true, breaks: true, maxNesting: DEEPEST });
markdown.disable(LEFT_OUT);

/** Returns the address if following it is safe, else an empty string. */
export function safeHref(address) {
	try {
		const url = new URL(address);
		return SCHEMES.has(url.protocol) ? url.href : "";
	} catch {
		return ""; // relative, or no address at all
	}
}

// Links

markdown.normalizeLink = safeHref;
markdown.normalizeLinkText = (text) => text;
markdown.validateLink = (href) => href !== "";
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
for (const scheme of ["ftp:", "mailto:", "//"]) markdown.linkify.add(scheme, null);

// Blocks

const { tokenize } = markdown.block;
markdown.block.tokenize = (state, start, end) => {
	if (state.parentType !== "list") deepen(state, start, end);
	tokenize.call(markdown.block, state, start, end);
};

/** An item indented by two belongs to the one above, even if that one begins with "10. ". */
function deepen(state, start, end) {
	let above = null;
	let shift = null;
	for (let line = start; line < end; line += 1) {
		const indent = state.sCount[line];
		if (state.isEmpty(line)) continue;
		const mark = matchAt(ITEM, state.src, state.bMarks[line] + state.tShift[line]);
		const isBelow = above && indent >= above.indent + 2;
		if (shift && indent < shift.from) shift = null;
		if (mark && isBelow && indent < above.content) shift ??= { from: indent, by: above.content - indent };
		if (mark && shift) state.sCount[line] += shift.by;
		else if (mark && !isBelow) above = { indent, content: indent + mark[0].length };
		else if (!mark && indent < above?.content) above = null;
	}
}

/** Before a line counts as part of a table: a bar in code is not a border, a line without bars not a row. */
function bars(state, line, _end, isSilent) {
	const [start, end] = [state.bMarks[line], state.eMarks[line]];
	const text = state.src.slice(start, end);
	const hidden = text.replace(CODE_WITH_BAR, (code) => code.replaceAll("|", HIDDEN_BAR));
	if (hidden !== text) state.src = state.src.slice(0, start) + hidden + state.src.slice(end);
	return isSilent && state.parentType === "table" && !text.includes("|");
}

markdown.block.ruler.before("table", "bars", bars, { alt: ["paragraph", "blockquote"] });

const ADAPTED = {
	heading_open: lowered,
	heading_close: lowered,
	th_open: aligned,
	td_open: aligned,
	paragraph_open: led,
};

/** Headings in a text come below the page's own headings. */
function lowered(token) {
	const level = Number(token.tag[1]);
	token.tag = `h${Math.min(level + 2, 6)}`;
	if (token.nesting > 0) token.attrSet("data-level", `${level}`);
}

function aligned(token) {
	const side = { "text-align:right": "end", "text-align:center": "center" }[token.attrGet("style")];
	token.attrs = side ? [["data-align", side]] : null;
}

/** An item begins with its text, which may be a task; if paragraphs are separated, the list is loose. */
function led(token, tokens, at, list) {
	const item = tokens[at - 1];
	const isFirst = item?.type === "list_item_open";
	if (isFirst && !token.hidden && !list.attrGet("class")) list.attrs = [["class", "loose"], ...(list.attrs ?? [])];
	token.hidden = tokens[at + 2].hidden = isFirst;
	const words = tokens[at + 1];
	const task = isFirst && TASK.exec(words.content);
	if (!task) return;
	item.attrSet("class", task[1] === " " ? "task" : "task done");
	words.content = words.content.slice(task[0].length);
}

markdown.core.ruler.after("block", "adapt", ({ tokens }) => {
	const lists = [];
	tokens.forEach((token, at) => {
		token.content = token.content.replaceAll(HIDDEN_BAR, "|");
		if (/list_open$/.test(token.type)) lists.push(token);
		if (/list_close$/.test(token.type)) lists.pop();
		ADAPTED[token.type]?.(token, tokens, at, lists.at(-1));
	});
});

// Within a block

markdown.inline.State = class extends markdown.inline.State {
	/** Not only between spaces, as in "**Note:**text", and in languages without spaces. */
	scanDelims(start, canSplitWord) {
		const run = super.scanDelims(start, canSplitWord);
		const end = start + run.length;
		const before = this.src[start - 1] ?? " ";
		const after = end < this.posMax ? this.src[end] : " ";
		return canSplitWord ? { ...run, can_open: after.trim() !== "", can_close: before.trim() !== "" } : run;
	}
};

/** The only HTML tag that models often write. */
markdown.inline.ruler.before("autolink", "br", (state, isSilent) => {
	const found = matchAt(BREAK, state.src, state.pos);
	if (found && !isSilent) state.push("hardbreak", "br", 0);
	state.pos += found?.[0].length ?? 0;
	return found !== null;
});

markdown.core.ruler.push("mark", ({ tokens }) => {
	for (const { children } of tokens) {
		let isLinked = false;
		for (const token of children ?? []) {
			if (token.tag === "s") token.tag = "del";
			if (token.tag === "a") isLinked = token.nesting > 0;
			if (token.type === "image") token.meta = { isLinked };
		}
	}
});

// Rendering

const { renderer } = markdown;
const { escapeHtml } = markdown.utils;

renderer.rules.softbreak = renderer.rules.hardbreak = () => "<br>";

renderer.rules.image = (tokens, at, options, env) => {
	const { children, meta, attrs } = tokens[at];
	const href = attrs.find(([name]) => name === "src")[1];
	const label = `🖼 ${escapeHtml(renderer.renderInlineAsText(children, options, env) || href)}`;
	return meta.isLinked ? label : `<a href="${escapeHtml(href)}">${label}</a>`;
};

// No blank lines between blocks.
const { fence } = renderer.rules;
renderer.rules.fence = (...given) => fence(...given).trimEnd();
renderer.renderToken = (tokens, at) => {
	const token = tokens[at];
	if (token.hidden) return "";
	return token.nesting < 0 ? `</${token.tag}>` : `<${token.tag}${renderer.renderAttrs(token)}>`;
};

function matchAt(pattern, text, at) {
	pattern.lastIndex = at;
	return pattern.exec(text);
}
