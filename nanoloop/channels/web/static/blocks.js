// The blocks of a Markdown text: what each is and on which line it begins.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: {1,4}(?=\S)| +|$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const DEEPEST = 8;

/** The lines' blocks, in order: `{kind, line, …}`. */
export function parse(lines, depth = 0) {
	const found = [];
	for (let at = 0; at < lines.length; ) {
		if (!lines[at].trim()) {
			at += 1;
			continue;
		}
		const [block, end] = blockAt(lines, at, depth);
		found.push({ ...block, line: at });
		at = end;
	}
	return found;
}

function blockAt(lines, at, depth) {
	const line = lines[at];
	if (depth > DEEPEST) return paragraph(lines, at, depth);
	if (FENCE.test(line)) return fence(lines, at);
	if (HEADING.test(line)) return [heading(line), at + 1];
	if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
	if (QUOTE.test(line)) return quote(lines, at, depth);
	if (isItem(line)) return list(lines, at, depth);
	if (isTable(lines, at)) return table(lines, at);
	return paragraph(lines, at, depth);
}

const startsBlock = (lines, at) =>
	FENCE.test(lines[at]) ||
	HEADING.test(lines[at]) ||
	RULE.test(lines[at]) ||
	QUOTE.test(lines[at]) ||
	isTable(lines, at);

function paragraph(lines, at, depth) {
	let end = at + 1;
	while (end < lines.length && lines[end].trim()) {
		if (depth <= DEEPEST && (startsBlock(lines, end) || mayInterrupt(lines[end]))) break;
		end += 1;
	}
	const text = lines.slice(at, end).map((line) => line.trim());
	return [{ kind: "paragraph", text: text.join("\n") }, end];
}

/** A list may follow a paragraph without a blank line, but "1984. …" is no list. */
function mayInterrupt(line) {
	const item = ITEM.exec(spaced(line));
	return item && item[1].length < 4 && /^(?:[-*+]|1[.)])$/.test(item[2]) && item[0] !== line.trimEnd();
}

function fence(lines, at) {
	const [, mark, info] = FENCE.exec(lines[at]);
	const indent = lines[at].search(/\S/);
	const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`);
	let end = at + 1;
	while (end < lines.length && !closing.test(lines[end])) end += 1;
	const code = lines.slice(at + 1, end).map((line) => undented(line, indent));
	const block = { kind: "code", language: info.trim().split(/\s/)[0], text: code.join("\n") };
	return [block, Math.min(end + 1, lines.length)];
}

function heading(line) {
	const [start, marks] = HEADING.exec(line);
	const text = line.slice(start.length).trim().replace(/(?:^|\s)#+$/, "");
	return { kind: "heading", level: marks.length, text };
}

function quote(lines, at, depth) {
	let end = at;
	while (end < lines.length && QUOTE.test(lines[end])) end += 1;
	const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
	return [{ kind: "quote", blocks: parse(inner, depth + 1) }, end];
}

function isItem(line) {
	const item = ITEM.exec(spaced(line));
	return item !== null && item[1].length < 4;
}

function list(lines, at, depth) {
	const [, , first] = ITEM.exec(spaced(lines[at]));
	const isOrdered = /\d/.test(first);
	const items = [];
	let isLoose = false;
	let end = at;
	while (end < lines.length) {
		const head = ITEM.exec(spaced(lines[end]));
		const isSame = head && head[1].length < 4 && /\d/.test(head[2]) === isOrdered;
		if (!isSame || RULE.test(lines[end])) break;
		const stop = itemEnd(lines, end, head);
		items.push(item(itemLines(lines.slice(end, stop), head[0].length), depth));
		const next = skipBlank(lines, stop);
		isLoose ||= next > stop && next < lines.length && isItem(lines[next]);
		end = next;
	}
	return [{ kind: "list", isOrdered, start: parseInt(first, 10) || 0, isLoose, items }, end];
}

/** The line after an item's last: deeper ones are its own, and a paragraph that runs on. */
function itemEnd(lines, at, [, indent, mark]) {
	const own = indent.length + mark.length + 1;
	let end = at + 1;
	for (let next = end; next < lines.length; next += 1) {
		const line = spaced(lines[next]);
		if (!line.trim()) continue;
		const depth = line.search(/\S/);
		const isDeeper = depth >= own || (depth >= indent.length + 2 && ITEM.test(line));
		const runsOn = next === end && !ITEM.test(line) && !startsBlock(lines, next);
		if (!isDeeper && !runsOn) break;
		end = next + 1;
	}
	return end;
}

/** An item's lines without its mark and indent; many write less of an indent than they should. */
function itemLines([first, ...others], width) {
	const indents = others.filter((line) => line.trim()).map((line) => spaced(line).search(/\S/));
	const indent = Math.min(width, ...indents.filter((each) => each > 0));
	return [spaced(first).slice(width), ...others.map((line) => undented(line, indent))];
}

function item(lines, depth) {
	const task = /^\[([ xX])\] +/.exec(lines[0]);
	if (task) lines[0] = lines[0].slice(task[0].length);
	const isDone = task ? task[1] !== " " : null;
	return { isDone, blocks: parse(lines, depth + 1) };
}

function skipBlank(lines, at) {
	let next = at;
	while (next < lines.length && !lines[next].trim()) next += 1;
	return next;
}

function isTable(lines, at) {
	const below = lines[at + 1] ?? "";
	if (!lines[at].includes("|") || !below.includes("-") || !DELIMITERS.test(below)) return false;
	return cells(lines[at]).length === cells(below).length;
}

function table(lines, at) {
	let end = at + 2;
	while (end < lines.length && lines[end].includes("|")) end += 1;
	const [head, marks, ...rows] = lines.slice(at, end).map(cells);
	const align = marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "end") : ""));
	return [{ kind: "table", head, align, rows: rows.map((row) => row.slice(0, head.length)) }, end];
}

/** A row's cells: a bar within code or behind a backslash is none. */
function cells(line) {
	const row = line.trim().replace(/^\|/, "");
	const found = [""];
	let isCode = false;
	for (let at = 0; at < row.length; at += 1) {
		const sign = row[at];
		if (sign === "`") isCode = !isCode;
		if (sign === "\\" && row[at + 1] === "|") {
			at += 1;
			found[found.length - 1] += "|";
		} else if (sign === "|" && !isCode) found.push("");
		else found[found.length - 1] += sign;
	}
	if (!found.at(-1).trim() && found.length > 1) found.pop();
	return found.map((cell) => cell.trim());
}

/** A tab at a line's beginning counts as four spaces. */
function spaced(line) {
	return line.replace(/^[ \t]+/, (white) => white.replaceAll("\t", "    "));
}

function undented(line, most) {
	if (most === 0) return line; // its tabs are its own
	const even = spaced(line);
	return even.slice(Math.min(even.search(/\S|$/), most));
}
