// A button that copies, and says that it did.

import { el } from "./element.js";
import { icon } from "./icons.js";

const SHOWN_MS = 1600;

export function copyButton(label, text) {
  const word = el("span", {}, "Copy");
  const button = el("button", { type: "button", class: "quiet copy", "aria-label": label }, icon("copy"), word);
  button.addEventListener("click", async () => {
    word.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => (word.textContent = "Copy"), SHOWN_MS);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedByHand(text); // a page that came over plain HTTP has no clipboard
  }
}

function copiedByHand(text) {
  const area = el("textarea", { class: "unseen" });
  area.value = text;
  document.body.append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } finally {
    area.remove();
  }
}
