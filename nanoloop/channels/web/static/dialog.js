// Dialogs over the page: edit a text, confirm something, choose from a menu, read a short message.

import { button, byId, el } from "./element.js";
import { icon } from "./icons.js";

const TOLD_MS = 6000;

/** Returns the text that the user enters, or null if they cancel. */
export async function askText(title, label, value) {
	const input = el("input", { "aria-label": label, maxlength: "200", required: true, dir: "auto", value });
	return (await ask(title, input, "Save")) ? input.value.trim() || null : null;
}

export const confirmed = (title, text, action) => ask(title, el("p", {}, text), action);

function ask(title, content, action) {
	const actions = [button(null, "Cancel", () => dialog.close()), el("button", { value: "yes", class: "strong" }, action)];
	const dialog = el("dialog", { "aria-label": title },
		el("form", { method: "dialog" }, el("h2", {}, title), content, el("div", { class: "actions" }, actions)));
	document.body.append(dialog);
	dialog.showModal();
	content.select?.();
	return new Promise((done) => {
		dialog.addEventListener("close", () => {
			dialog.remove();
			done(dialog.returnValue === "yes");
		});
	});
}

/** Shows choices beside the button that opened them: `{name, label, act}` or `{name, label, href}`. */
export function menu(opener, label, choices) {
	const list = el("div", { class: "menu", role: "menu", popover: "auto", "aria-label": label });
	list.append(...choices.map((choice) => menuItem(choice, () => list.hidePopover())));
	document.body.append(list);
	list.addEventListener("toggle", ({ newState }) => {
		opener.setAttribute("aria-expanded", newState === "open");
		if (newState === "open") return;
		list.remove();
		if (document.activeElement === document.body) opener.focus();
	});
	list.addEventListener("keydown", (event) => walk(event, [...list.children]));
	list.showPopover();
	place(list, opener.getBoundingClientRect());
	list.firstChild.focus();
}

function menuItem({ name, label, act, href }, close) {
	const onclick = () => {
		close();
		act?.();
	};
	return el(href ? "a" : "button", { role: "menuitem", onclick, href, download: Boolean(href) }, icon(name), label);
}

function place(list, { left, top, bottom }) {
	const { width, height } = list.getBoundingClientRect();
	const isBelow = bottom + height + 8 < innerHeight;
	list.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
	list.style.top = `${isBelow ? bottom + 4 : Math.max(8, top - height - 4)}px`;
}

/** The up and down keys move between the choices, and wrap around. */
export function walk(event, stops) {
	const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
	if (!step || !stops.length) return;
	event.preventDefault();
	stops.at((stops.indexOf(document.activeElement) + step) % stops.length).focus();
}

/** Shows a sentence for a while. */
export function tell(text) {
	const toast = el("div", { class: "toast" }, text);
	byId("toasts").append(toast);
	setTimeout(() => toast.remove(), TOLD_MS);
}

/** Runs an action and shows an error if it fails. */
export async function trying(act) {
	try {
		return await act();
	} catch (error) {
		tell(error.message);
		return undefined;
	}
}
