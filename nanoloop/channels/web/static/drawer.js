// The panels at both sides: columns where there is room, drawers over the page where there is not.

import { byId } from "./element.js";

export class Drawer {
  #button;
  #key;
  #narrow;

  /** `#name`, opened by `#open-name`; `narrow` says when it covers the page instead. */
  constructor(name, narrow, { isOpenAtFirst }) {
    this.panel = byId(name);
    this.#button = byId(`open-${name}`);
    this.#key = `nanoloop.${name}`;
    this.#narrow = matchMedia(narrow);
    this.#narrow.addEventListener("change", () => this.#show(!this.isCovering && this.#wanted(isOpenAtFirst)));
    this.#button.addEventListener("click", () => this.toggle());
    byId(`close-${name}`).addEventListener("click", () => this.close());
    byId("shade").addEventListener("click", () => this.isCovering && this.close());
    this.panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.isCovering) return;
      event.stopPropagation();
      this.close();
    });
    this.#show(!this.isCovering && this.#wanted(isOpenAtFirst));
  }

  get isCovering() {
    return this.#narrow.matches;
  }

  get isOpen() {
    return !this.panel.hidden;
  }

  toggle() {
    if (this.isOpen) this.close();
    else this.#set(true);
  }

  close() {
    const hadFocus = this.panel.contains(document.activeElement);
    this.#set(false);
    if (hadFocus) this.#button.focus();
  }

  /** Out of the way, where it covers the page. */
  giveWay() {
    if (this.isCovering) this.close();
  }

  #wanted(otherwise) {
    try {
      return (localStorage.getItem(this.#key) ?? String(otherwise)) === "true";
    } catch {
      return otherwise;
    }
  }

  #set(isOpen) {
    this.#show(isOpen);
    if (isOpen && this.isCovering) this.panel.querySelector("button, input, a").focus();
    if (this.isCovering) return;
    try {
      localStorage.setItem(this.#key, isOpen);
    } catch {
      // It is remembered as long as the page is open.
    }
  }

  #show(isOpen) {
    this.panel.hidden = !isOpen;
    this.#button.setAttribute("aria-expanded", isOpen);
    this.panel.classList.toggle("covering", isOpen && this.isCovering);
    const isCovered = document.querySelector("aside.covering") !== null;
    byId("shade").hidden = !isCovered;
    byId("main").inert = isCovered;
  }
}
