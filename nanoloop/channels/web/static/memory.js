// The memory panel: the log as a bar, what stands where, the summary with its ledger and receipts.

import { at, call, get, post } from "./api.js";
import { trying } from "./dialog.js";
import { byId, el } from "./element.js";
import { icon } from "./icons.js";
import { render } from "./markdown.js";
import { counted, number, shortTime } from "./words.js";

export const PLACES = { covered: "In the summary", pending: "Pending", window: "Word for word" };
const RECEIPTS = 20;
/** Lists up to here are open at first. */
const OPEN = 12;

export class Memory {
  #id = null;
  #asked = 0;
  #isEditing = false;

  /** `marked(placeOf)` is called with where each entry is now. */
  constructor(marked) {
    this.marked = marked;
    this.known = null;
    byId("summarise").addEventListener("click", () => this.#summarise());
  }

  open(id) {
    this.#id = id;
    this.known = null;
    this.#isEditing = false;
    byId("memory-body").hidden = true;
  }

  async load() {
    this.#asked += 1;
    const [id, asked] = [this.#id, this.#asked];
    const known = id && (await trying(() => get(at(id, "/memory"))));
    if (known && asked === this.#asked && id === this.#id) this.#show(known);
  }

  /** Where an entry is: in the summary, pending, or seen word for word. */
  placeOf(seq) {
    const { covered, window } = this.known;
    if (seq <= covered) return "covered";
    return window.count && seq < window.first ? "pending" : "window";
  }

  #show(known) {
    this.known = known;
    byId("memory-body").hidden = false;
    const counts = this.#counts();
    byId("bar").replaceChildren(...bar(counts, known.running));
    byId("legend").replaceChildren(...Object.keys(PLACES).flatMap((place) => this.#row(place, counts[place])));
    byId("memory-says").textContent = this.#sentence(counts);
    byId("memory-state").replaceChildren(...this.#state());
    byId("memory-dot").hidden = !known.running;
    byId("summarise").disabled = known.running;
    if (!this.#isEditing) this.#showSummary();
    byId("ledger").replaceChildren(...section("Ledger", known.ledger, ledgerItem));
    byId("pins").replaceChildren(...section("Pinned", known.pins, pinItem));
    const receipts = [...known.receipts].reverse().slice(0, RECEIPTS);
    byId("receipts").replaceChildren(...section("Receipts", receipts, receiptItem), ...spent(known.spent));
    this.marked((seq) => this.placeOf(seq));
  }

  #counts() {
    const { log, pending, window } = this.known;
    return { covered: Math.max(0, log.entries - pending.count - window.count), pending: pending.count, window: window.count };
  }

  #row(place, count) {
    const { log, covered, pending, window, tokens } = this.known;
    const [first, last] = { covered: [log.first, covered], pending: [pending.first, pending.last], window: [window.first, window.last] }[place];
    const size = { covered: tokens.summary, pending: tokens.pending, window: tokens.window }[place];
    const range = count > 0 ? `#${first}–${last}` : "none";
    return [
      el("dt", { class: place }, PLACES[place]),
      el("dd", {}, el("span", {}, range), el("b", {}, number(count)), el("span", {}, count || size ? `${number(size)} tokens` : "")),
    ];
  }

  #sentence({ covered, pending, window }) {
    if (!covered && !pending) return `All ${counted(window, "entry").replace("entrys", "entries")} of this conversation fit: the model reads them word for word.`;
    const waits = pending ? ` ${number(pending)} between them wait${pending === 1 ? "s" : ""} to be summarised.` : "";
    const reads = covered ? "the summary in place of what came before" : "no summary yet";
    return `The model reads the newest ${number(window)} word for word, and ${reads}.${waits} The log keeps everything.`;
  }

  #state() {
    const { running, waiting } = this.known;
    if (running) return [el("span", { class: "working" }, "A summary is being written. No answer waits for it.")];
    return waiting ? [`Waiting: ${waiting}`] : [];
  }

  // The summary

  #showSummary() {
    const { text } = this.known.summary;
    const words = text.split(/\s+/).filter(Boolean).length;
    const edit = el("button", { type: "button", class: "plain", id: "edit-summary", onclick: () => this.#edit() }, icon("edit"), "Edit");
    const body = text ? render(text) : "Nothing has left the window yet, so there is nothing to summarise.";
    byId("summary").replaceChildren(
      el("div", { class: "head" }, el("h3", {}, "Summary"), text && el("span", { class: "soft" }, counted(words, "word")), text && edit),
      el("div", { class: text ? "prose" : "soft", dir: "auto" }, body),
    );
  }

  #edit() {
    this.#isEditing = true;
    const area = el("textarea", { "aria-label": "Summary", rows: "12", dir: "auto" });
    area.value = this.known.summary.text;
    const done = () => {
      this.#isEditing = false;
      this.#showSummary();
      byId("edit-summary")?.focus();
    };
    const form = el("form", {}, area, el("div", { class: "actions" },
      el("button", { type: "button", class: "plain", onclick: done }, "Cancel"), el("button", { class: "strong" }, "Save")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (await this.#save(area.value)) done();
    });
    form.addEventListener("keydown", (event) => event.key === "Escape" && (event.stopPropagation(), done()));
    byId("summary").replaceChildren(el("div", { class: "head" }, el("h3", {}, "Summary")), form);
    area.focus();
  }

  async #save(text) {
    const known = await trying(() => call("PUT", at(this.#id, "/memory/summary"), { json: { text } }));
    if (known) this.#show(known);
    return known;
  }

  async #summarise() {
    await trying(() => post(at(this.#id, "/memory/summarise")));
    this.load();
  }
}

function bar(counts, isRunning) {
  return Object.keys(PLACES).filter((place) => counts[place]).map((place) => {
    const part = el("span", { class: `${place}${isRunning && place === "pending" ? " running" : ""}`, title: `${PLACES[place]}: ${number(counts[place])}` });
    part.style.flexGrow = counts[place];
    return part;
  });
}

function section(title, items, show) {
  if (!items.length) return [];
  return [el("details", { open: items.length <= OPEN }, el("summary", {}, el("h3", {}, title), el("span", { class: "soft" }, number(items.length))),
    el("ul", {}, items.map(show)))];
}

const ledgerItem = ({ kind, text, seq }) =>
  el("li", {}, el("span", { class: "kind" }, kind), el("span", { class: "text", dir: "auto" }, text), el("span", { class: "soft" }, `#${seq}`));

const pinItem = ({ who, text, seq }) =>
  el("li", {}, el("span", { class: "kind" }, who), el("span", { class: "text", dir: "auto" }, text), el("span", { class: "soft" }, `#${seq}`));

function receiptItem(receipt) {
  const { first_seq: first, last_seq: last, messages, model, tokens_in: read, tokens_out: written, seconds, time } = receipt;
  return el("li", { class: "receipt" },
    el("b", {}, `#${first}–${last}`), ` ${counted(messages, "message")} · ${number(read)} → ${number(written)} tokens · ${seconds.toFixed(1)} s`,
    el("span", { class: "soft" }, ` ${model}${time ? `, ${shortTime(time)}` : ""}`));
}

function spent({ calls, tokens_in: read, tokens_out: written } = {}) {
  if (!calls) return [];
  return [el("p", { class: "soft" }, `In all ${counted(calls, "call")}, ${number(read)} tokens read and ${number(written)} written.`)];
}
