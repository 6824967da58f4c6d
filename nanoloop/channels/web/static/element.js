// Creates elements from code: text stays text, and markup can't be passed.

import { icon } from "./icons.js";

export const byId = (id) => document.getElementById(id);

export const on = (id, event, act) => byId(id).addEventListener(event, act);

/** Creates an element; `on…` props are listeners, `true` sets a bare attribute, empty values are skipped. */
export function el(tag, props = {}, ...children) {
	const node = document.createElement(tag);
	for (const [name, value] of Object.entries(props)) {
		if (value === undefined || value === null || value === false) continue;
		if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
		else node.setAttribute(name, value === true ? "" : value);
	}
	node.append(...children.flat(Infinity).filter((child) => child || child === 0));
	return node;
}

export function button(name, label, onclick, kind = "plain") {
	return el("button", { type: "button", class: kind, onclick }, name && icon(name), label);
}

/** A button with only an icon; its label is read aloud and shown on hover. */
export function iconButton(name, label, onclick, props = {}) {
	const about = { type: "button", class: "quiet", "aria-label": label, title: label };
	return el("button", { ...about, onclick, ...props }, icon(name));
}

/** Text for screen readers only. */
export const unseen = (tag, text) => el(tag, { class: "unseen" }, text);

export const soft = (...words) => el("span", { class: "soft" }, ...words);
