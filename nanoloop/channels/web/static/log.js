// The list of what was said: drawn once, changed where it changed, older pages above on demand.

import { messageItem } from "./message.js";

/** More items than this, and the oldest leave the page again; scrolling up brings them back. */
const MOST = 300;
const KEPT = 100;

export class Log {
  #shown = new Map(); // seq → { entry, item, said }
  #results = new Map(); // call id → the result's entry

  constructor(list) {
    this.list = list;
    /** Before which entry older ones are to be had; null where all are here. */
    this.before = null;
  }

  clear() {
    this.#shown.clear();
    this.#results.clear();
    this.list.replaceChildren();
    this.before = null;
  }

  get isEmpty() {
    return this.#shown.size === 0;
  }

  /** The last entry of this role. */
  last(role) {
    return this.#entries().findLast((entry) => entry.role === role);
  }

  /** The last thing said by either side. */
  get newest() {
    return this.#entries().findLast(({ role }) => role === "user" || role === "assistant");
  }

  /** What was answered since the last question, step by step. */
  answered() {
    const entries = this.#entries();
    const asked = entries.findLastIndex(({ role }) => role === "user");
    return entries.slice(asked + 1).filter(({ role }) => role === "assistant").map(({ text }) => text);
  }

  itemOf(entry) {
    return this.#shown.get(entry.seq)?.item;
  }

  #entries() {
    return [...this.#shown.values()].map(({ entry }) => entry);
  }

  /** The newest page as the server has it; `ready` finds a text that is drawn already. */
  apply({ messages, before }, ready = () => null) {
    const first = messages[0]?.seq ?? Infinity;
    const newest = [...this.#shown.keys()].at(-1) ?? -Infinity;
    if (before !== null && newest < first) this.clear(); // too much is new to know what is between
    if (this.isEmpty || before === null) this.before = before;
    const there = new Set(messages.map(({ seq }) => seq));
    for (const seq of this.#shown.keys()) {
      if (!there.has(seq) && (seq >= first || before === null)) this.#remove(seq);
    }
    const added = messages.filter((entry) => this.#put(entry, (item) => this.list.append(item), ready));
    return added;
  }

  /** An older page, above what is there. */
  prepend({ messages, before }) {
    this.before = before;
    const newer = [...this.#shown];
    const top = this.list.firstChild;
    this.#shown.clear();
    for (const entry of messages) this.#put(entry, (item) => this.list.insertBefore(item, top));
    for (const [seq, shown] of newer) this.#shown.set(seq, shown);
  }

  /** Whether it was new. */
  #put(entry, place, ready = () => null) {
    if (entry.role === "tool_result") return this.#putResult(entry, place);
    const result = this.#results.get(entry.call_id);
    const said = JSON.stringify([entry, result]);
    const known = this.#shown.get(entry.seq);
    if (known?.said === said) return false;
    const item = messageItem(entry, { ready: ready(entry), result });
    if (known) replace(known.item, item);
    else place(item);
    this.#shown.set(entry.seq, { entry, item, said });
    return !known;
  }

  /** A result is shown with its call; alone only where the call is on an older page. */
  #putResult(entry, place) {
    this.#results.set(entry.call_id, entry);
    const call = this.#entries().find((each) => each.role === "tool_call" && each.call_id === entry.call_id);
    if (call) return this.#put(call, place);
    if (this.#shown.has(entry.seq)) return false;
    const item = messageItem({ ...entry, arguments: undefined }, { result: entry });
    place(item);
    this.#shown.set(entry.seq, { entry, item, said: "" });
    return true;
  }

  #remove(seq) {
    const { entry, item } = this.#shown.get(seq);
    if (entry.role === "tool_call") this.#results.delete(entry.call_id);
    item.remove();
    this.#shown.delete(seq);
  }

  /** Let the oldest go where there are very many. */
  shorten() {
    if (this.#shown.size <= MOST) return;
    const gone = [...this.#shown.keys()].slice(0, -KEPT);
    gone.forEach((seq) => this.#remove(seq));
    this.before = [...this.#shown.keys()][0];
  }

  /** Mark each entry with where it is now: in the summary, pending, or seen word for word. */
  mark(placeOf) {
    for (const [seq, { item }] of this.#shown) item.dataset.place = placeOf(seq);
  }
}

/** In the same place, as open as it was. */
function replace(old, item) {
  const wasOpen = old.querySelector(":scope > details")?.open;
  if (wasOpen) item.querySelector(":scope > details").open = true;
  item.dataset.place = old.dataset.place ?? "";
  old.replaceWith(item);
}
