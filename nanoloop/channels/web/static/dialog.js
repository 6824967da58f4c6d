// Questions over the page: a text to change, something to confirm, a menu of choices.

import { byId, el } from "./element.js";
import { icon } from "./icons.js";

/** The text a person gives, or null where they would rather not. */
export function askText(title, label, value, action = "Save") {
  const input = el("input", { name: "text", "aria-label": label, maxlength: "200", required: true, dir: "auto", autocomplete: "off" });
  input.value = value;
  return ask(title, [input], action, () => input.value.trim() || null, () => input.select());
}

/** Whether a person wants it. */
export async function confirmed(title, text, action) {
  return (await ask(title, [el("p", {}, text)], action, () => true)) ?? false;
}

function ask(title, content, action, result, shown = () => {}) {
  const cancel = el("button", { type: "button", class: "plain", onclick: () => dialog.close() }, "Cancel");
  const form = el("form", { method: "dialog" }, el("h2", {}, title), content,
    el("div", { class: "actions" }, cancel, el("button", { value: "yes", class: "strong" }, action)));
  const dialog = el("dialog", { "aria-label": title }, form);
  document.body.append(dialog);
  dialog.showModal();
  shown();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      done(dialog.returnValue === "yes" ? result() : null);
      dialog.remove();
    });
  });
}

/** Choices beside the button that opened them: `{icon, label, act}` or `{icon, label, href}`. */
export function menu(button, label, choices) {
  const list = el("div", { class: "menu", role: "menu", popover: "auto", "aria-label": label },
    choices.map((choice) => menuItem(choice, () => list.hidePopover())));
  document.body.append(list);
  list.addEventListener("toggle", ({ newState }) => {
    button.setAttribute("aria-expanded", newState === "open");
    if (newState === "open") return;
    list.remove();
    if (document.activeElement === document.body) button.focus();
  });
  list.addEventListener("keydown", (event) => walk(event, [...list.children]));
  list.showPopover();
  place(list, button);
  list.firstChild.focus();
}

function menuItem({ icon: name, label, act, href }, done) {
  const props = { role: "menuitem", onclick: () => (done(), act?.()) };
  const tag = href ? el("a", { ...props, href, download: true }) : el("button", { ...props, type: "button" });
  tag.append(icon(name), label);
  return tag;
}

function place(list, button) {
  const from = button.getBoundingClientRect();
  const { width, height } = list.getBoundingClientRect();
  const isBelow = from.bottom + height + 8 < innerHeight;
  list.style.left = `${Math.max(8, Math.min(from.left, innerWidth - width - 8))}px`;
  list.style.top = `${isBelow ? from.bottom + 4 : Math.max(8, from.top - height - 4)}px`;
}

/** Up and down go from one to the next, and around. */
export function walk(event, stops) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !stops.length) return;
  event.preventDefault();
  const now = stops.indexOf(document.activeElement);
  stops.at((now + step) % stops.length).focus();
}

const SHOWN_MS = 6000;

/** A sentence that shows for a while. */
export function tell(text) {
  const toast = el("div", { class: "toast" }, text);
  byId("toasts").append(toast);
  setTimeout(() => toast.remove(), SHOWN_MS);
}

/** Does it, and tells what went wrong if it did. */
export async function trying(act) {
  try {
    return await act();
  } catch (error) {
    tell(error.message);
    return undefined;
  }
}
