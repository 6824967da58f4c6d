// One entry of the conversation as an element of the list.

import { copyButton } from "./copy.js";
import { el, iconButton, unseen } from "./element.js";
import { icon } from "./icons.js";
import { render, renderTyped } from "./markdown.js";
import { bytes, fullTime, shortTime } from "./words.js";

/** The element of an entry; `ready` is its text where it is drawn already. */
export function messageItem(entry, { ready, result } = {}) {
  switch (entry.role) {
    case "user":
      return userItem(entry);
    case "assistant":
      return answerItem(entry, ready);
    case "thinking":
      return thoughtItem(entry);
    default:
      return toolItem(entry, result);
  }
}

export function userItem(entry, state = null) {
  const files = entry.attachments?.length > 0 && el("div", { class: "files" }, entry.attachments.map(fileItem));
  const text = entry.text && el("div", { class: "bubble", dir: "auto" }, renderTyped(entry.text));
  return el("li", { class: "user" }, unseen("h3", "You said"), files, text, state ?? metaOf(entry));
}

function answerItem(entry, ready) {
  const body = ready ?? el("div", { class: "prose", dir: "auto" });
  if (!ready) body.append(render(entry.text));
  const stopped = entry.stopped && el("span", { class: "tag" }, "stopped");
  return el("li", { class: "answer" }, unseen("h3", "Answer"), body,
    metaOf(entry, stopped, copyButton("Copy answer", () => entry.text)));
}

function metaOf(entry, ...more) {
  const when = el("time", { datetime: entry.time, title: fullTime(entry.time) }, shortTime(entry.time));
  return el("div", { class: "meta" }, when, more);
}

function thoughtItem(entry) {
  return folded("thought", "thought", ["Thought"], el("div", { class: "prose", dir: "auto" }, render(entry.text)));
}

function toolItem(call, result) {
  const state = result ? (result.success === false ? "failed" : "done") : "running";
  const name = el("code", {}, call.tool ?? "tool");
  const label = { failed: " failed", done: "", running: " is running" }[state];
  const content = [
    call.arguments !== undefined && part("Asked with", shown(call.arguments)),
    result && part(state === "failed" ? "Error" : "Result", shown(result.result ?? result.text)),
  ];
  return folded(`tool ${state}`, "tool", ["Used ", name, label], content);
}

function folded(kind, name, title, content) {
  return el("li", { class: kind }, el("details", {}, el("summary", {}, icon(name), el("span", {}, title)),
    el("div", { class: "inside" }, content)));
}

const part = (title, text) => [el("h4", {}, title), el("pre", { tabindex: "0" }, text)];

function shown(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** A file that came with a message, or is about to; `remove` is there while it may be taken back. */
export function fileItem(file, remove) {
  const isPicture = file.kind === "image" && file.url;
  const picture = isPicture && el("img", { src: file.url, alt: file.name || "picture", loading: "lazy" });
  const about = [el("b", {}, file.name || "file"), el("span", {}, file.note ?? (file.size ? bytes(file.size) : ""))];
  const words = [!isPicture && icon("file"), (!isPicture || file.note) && el("span", { class: "about" }, about)];
  const open = file.url && !file.url.startsWith("blob:");
  const box = open
    ? el("a", { href: file.url, target: "_blank", rel: "noopener" }, picture, words)
    : el("span", {}, picture, words);
  const isMovable = typeof remove === "function"; // not the index that `map` passes
  return el("div", { class: `file${isPicture ? " picture" : ""}${file.failed ? " failed" : ""}` }, box,
    isMovable && iconButton("close", `Remove ${file.name || "file"}`, remove));
}

/** A word of the loop itself, or an apology with what to do about it. */
export function noticeItem({ text, kind }, action = null) {
  return el("li", { class: `notice ${kind}` }, el("div", { class: "prose", dir: "auto" }, render(text)), action);
}

/** The answer that is being written. */
export function liveItem() {
  const body = el("div", { class: "prose", dir: "auto" });
  return { body, item: el("li", { class: "answer live", "aria-busy": "true" }, unseen("h3", "Answer"), body) };
}
