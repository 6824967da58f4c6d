// One entry of the conversation as an element of the list.

import { copyButton } from "./copy.js";
import { button, el, iconButton, unseen } from "./element.js";
import { icon } from "./icons.js";
import { render } from "./markdown.js";
import { bytes, fullTime, shortTime } from "./words.js";

/** `ready` is the answer's element if it is drawn already, `result` the result of a call; `choose` answers a question. */
export function messageItem(entry, { ready, result, choose }) {
	if (entry.role === "user") return userItem(entry, metaOf(entry));
	if (entry.role === "assistant") return answerItem(entry, ready ?? prose(entry.text));
	if (entry.role === "thinking") return folded("thought", "thought", "Thought", prose(entry.text));
	if (entry.role === "approval") return questionItem(entry, choose);
	return toolItem(entry, result);
}

const BECAME = {
	given: "approved", started: "approved", answered: "answered", edited: "the message was edited", erased: "erased",
	expired: "nobody answered in time", left: "the conversation was left", stopped: "stopped", changed: "the tool has changed",
};

/** A question whether tools may be called: with buttons while it waits, then with what became of it. */
function questionItem(entry, choose) {
	const buttons = entry.choices.map(({ label, text }) => button(null, label, (event) => choose(text, event.currentTarget)));
	const became = entry.asks.filter(({ state }) => state !== "asked").map(({ number, state }) =>
		el("span", { class: "tag" }, entry.asks.length > 1 && `${number}: `, BECAME[state] ?? "closed"));
	const group = buttons.length > 0 && el("div", { class: "choices", role: "group", "aria-label": "Your answer" }, buttons);
	return el("li", { class: "approval" }, unseen("h2", "Question"), prose(entry.text), group, metaOf(entry, became));
}

/** The user's text is shown as typed. */
export function userItem({ text, attachments = [], quotes = [] }, meta) {
	const files = filesItem(attachments);
	const bubble = text && el("div", { class: "bubble", dir: "auto" }, text);
	return el("li", { class: "user" }, unseen("h2", "You said"), quotes.map(quoted), files, bubble, meta);
}

function filesItem(files = []) {
	return files.length > 0 && el("div", { class: "files" }, files.map((file) => fileItem(file)));
}

function quoted({ name, text }) {
	return el("blockquote", { class: "quoted", dir: "auto" }, name && el("b", {}, `${name}: `), text);
}

function answerItem(entry, body) {
	const stopped = entry.stopped && el("span", { class: "tag" }, "stopped");
	const meta = metaOf(entry, stopped, copyButton("Copy answer", () => entry.text));
	return el("li", { class: "answer" }, unseen("h2", "Answer"), body, filesItem(entry.attachments), meta);
}

function metaOf({ time }, ...more) {
	return el("div", { class: "meta" }, el("time", { datetime: time, title: fullTime(time) }, shortTime(time)), more);
}

export function prose(text) {
	return el("div", { class: "prose", dir: "auto" }, text && render(text));
}

function toolItem({ tool, arguments: given }, result) {
	const state = result ? (result.success ? "done" : "failed") : "running";
	const title = ["Used ", el("code", {}, tool), { failed: " and failed", running: " …" }[state]];
	const came = result && part(result.success ? "Result" : "Error", result.result);
	return folded(`tool ${state}`, "tool", title, [part("Asked with", given), came]);
}

function folded(kind, name, title, content) {
	const head = el("summary", {}, icon(name), el("span", {}, title));
	return el("li", { class: kind }, el("details", {}, head, el("div", { class: "inside" }, content)));
}

function part(title, value) {
	const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
	return [el("h3", {}, title), el("pre", { tabindex: "0" }, text)];
}

/** A file of a message, sent or not; `remove` takes it off again. */
export function fileItem({ kind, url, name, size, note, failed }, remove) {
	const isPicture = kind === "image" && url;
	const shown = isPicture ? el("img", { src: url, alt: name, loading: "lazy" }) : icon("file");
	const about = el("span", { class: "about" }, el("b", {}, name), el("span", {}, note ?? (size && bytes(size))));
	const isOpen = url && !url.startsWith("blob:");
	const box = el(isOpen ? "a" : "span", { href: isOpen && url, target: isOpen && "_blank" }, shown, (!isPicture || note) && about);
	return el("div", { class: `file${isPicture ? " picture" : ""}${failed ? " failed" : ""}` }, box,
		remove && iconButton("close", `Remove ${name}`, remove));
}

export function noticeItem({ text, kind }, action) {
	return el("li", { class: `notice ${kind}` }, prose(text), action);
}

export function liveItem(body) {
	return el("li", { class: "answer live", "aria-busy": "true" }, unseen("h2", "Answer"), body);
}
