// The list of conversations: search, open, and actions for each.

import { at, call, get, patch } from "./api.js";
import { askText, confirmed, menu, trying, walk } from "./dialog.js";
import { byId, el, iconButton, on } from "./element.js";
import { fullTime, period } from "./words.js";

const PAGE = 50;
/** Older conversations are found by search. */
const MOST = 200;
const SOON_MS = 120;

export const titleOf = (session) => session.title || "New conversation";

export class Sidebar {
	#sessions = [];
	#isMore = false;
	#isArchived = false;
	#timer = 0;
	#open = null;
	#asked = 0;
	#limit = PAGE;

	/** `gone(id)` is called when a conversation was archived or deleted. */
	constructor(gone) {
		this.gone = gone;
		this.list = byId("sessions");
		on("search", "input", () => this.soon());
		on("archived", "click", () => this.#turn());
		on("more", "click", () => this.load(MOST));
		this.list.addEventListener("keydown", (event) => walk(event, [...this.list.querySelectorAll("a")]));
	}

	/** Reloads the list soon; many changes at once cause one reload. */
	soon() {
		this.#timer ||= setTimeout(() => {
			this.#timer = 0;
			this.load();
		}, SOON_MS);
	}

	async load(limit = this.#limit) {
		this.#limit = limit;
		this.#asked += 1;
		const asked = this.#asked;
		const search = byId("search").value.trim();
		const query = new URLSearchParams({ search, archived: Number(this.#isArchived), limit });
		const page = await trying(() => get(`api/sessions?${query}`));
		if (!page || asked !== this.#asked) return;
		this.#sessions = page.sessions;
		this.#isMore = page.next !== null;
		this.#show(search);
	}

	select(id) {
		this.#open = id;
		for (const link of this.list.querySelectorAll("a")) mark(link, link.dataset.id === id);
	}

	#turn() {
		this.#isArchived = !this.#isArchived;
		byId("archived").setAttribute("aria-pressed", this.#isArchived);
		this.load(PAGE);
	}

	#show(search) {
		const focused = document.activeElement?.closest("#sessions a")?.dataset.id;
		const nothing = search ? "Nothing found." : this.#isArchived ? "Nothing is archived." : "No conversations yet.";
		const parts = this.#sessions.length ? this.#periods() : [el("p", { class: "empty" }, nothing)];
		this.list.replaceChildren(...parts);
		byId("more").hidden = !this.#isMore || this.#limit === MOST;
		if (focused) this.list.querySelector(`a[data-id="${CSS.escape(focused)}"]`)?.focus();
	}

	/** A heading and a list for each period. */
	#periods() {
		const parts = [];
		for (const session of this.#sessions) {
			const name = period(session.updated_at);
			if (parts.at(-2)?.textContent !== name) parts.push(el("h2", {}, name), el("ul"));
			parts.at(-1).append(this.#row(session));
		}
		return parts;
	}

	#row(session) {
		const { id, updated_at: time, awaiting } = session;
		const link = el("a", { href: `#${encodeURIComponent(id)}`, "data-id": id, title: fullTime(time) },
			el("span", { class: "title", dir: "auto" }, titleOf(session)), awaiting > 0 && el("span", { class: "busy-dot", title: "waits for an answer" }));
		mark(link, id === this.#open);
		const about = { "aria-haspopup": "menu" };
		return el("li", {}, link, iconButton("more", `Actions for ${titleOf(session)}`, ({ currentTarget }) => this.menu(session, currentTarget), about));
	}

	menu(session, button) {
		const download = ([format, label]) => ({ name: "down", label: `Export as ${label}`, href: at(session.id, `/export?format=${format}`) });
		const { archived } = session;
		menu(button, titleOf(session), [
			{ name: "edit", label: "Rename", act: () => this.#rename(session) },
			...Object.entries({ md: "Markdown", json: "JSON", yaml: "YAML" }).map(download),
			{ name: "box", label: archived ? "Bring back" : "Archive", act: () => this.#archive(session) },
			...(archived ? [{ name: "close", label: "Delete for good", act: () => this.#delete(session) }] : []),
		]);
	}

	async #rename(session) {
		const title = await askText("Rename", "Title", session.title);
		if (title) await this.#change(session, { title });
	}

	async #archive(session) {
		const done = await this.#change(session, { archived: !session.archived });
		if (done && !session.archived) this.gone(session.id);
	}

	async #change(session, change) {
		const done = await trying(() => patch(at(session.id), change));
		await this.load();
		return done;
	}

	async #delete(session) {
		const text = `“${titleOf(session)}” and all that was said in it will be gone.`;
		if (!(await confirmed("Delete for good?", text, "Delete"))) return;
		await trying(() => call("DELETE", at(session.id)));
		this.gone(session.id);
		this.load();
	}
}

function mark(link, isOpen) {
	if (isOpen) link.setAttribute("aria-current", "page");
	else link.removeAttribute("aria-current");
}
