// The side panels: columns if there is room, otherwise drawers over the page.

import { byId, on } from "./element.js";
import { lasting } from "./kept.js";

/** Below the first width there is room for one panel; below the second, a panel covers the page. */
const ROOM = matchMedia("(max-width: 1180px)");
const NARROW = matchMedia("(max-width: 860px)");

export class Drawer {
	#button;

	/** `#name`, opened by `#open-name`; the panel that is open at first takes precedence. */
	constructor(name, isFirst) {
		this.name = name;
		this.panel = byId(name);
		this.#button = byId(`open-${name}`);
		const hasPlace = () => !ROOM.matches || (isFirst && !NARROW.matches);
		const fit = () => this.#show(hasPlace() && (lasting.get(name) ?? isFirst));
		for (const width of [NARROW, ROOM]) width.addEventListener("change", fit);
		on(`open-${name}`, "click", () => this.set(!this.isOpen));
		on(`close-${name}`, "click", () => this.set(false));
		on("shade", "click", () => this.set(false));
		on(name, "keydown", (event) => {
			if (event.key !== "Escape" || !this.isCovering) return;
			event.stopPropagation();
			this.set(false);
		});
		fit();
	}

	get isOpen() {
		return !this.panel.hidden;
	}

	get isCovering() {
		return this.isOpen && NARROW.matches;
	}

	set(isOpen) {
		const hadFocus = this.panel.contains(document.activeElement);
		if (isOpen && ROOM.matches) this.rival.#show(false);
		this.#show(isOpen);
		if (!isOpen && hadFocus) this.#button.focus();
		if (this.isCovering) this.panel.querySelector("button").focus();
		if (!NARROW.matches) lasting.set(this.name, isOpen);
	}

	#show(isOpen) {
		this.panel.hidden = !isOpen;
		this.panel.classList.toggle("covering", this.isCovering);
		this.#button.setAttribute("aria-expanded", isOpen);
		const isCovered = document.querySelector(".covering") !== null;
		byId("shade").hidden = !isCovered;
		byId("main").inert = isCovered;
	}
}
