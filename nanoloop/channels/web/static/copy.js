// A button that copies a text and confirms it.

import { button, el } from "./element.js";

const SHOWN_MS = 1600;

export function copyButton(label, text) {
	const word = el("span", {}, "Copy");
	const copy = async () => {
		word.textContent = (await copied(text())) ? "Copied" : "Not copied";
		setTimeout(() => (word.textContent = "Copy"), SHOWN_MS);
	};
	const made = button("copy", word, copy, "quiet copy");
	made.setAttribute("aria-label", label);
	return made;
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
	const isCopied = document.execCommand("copy");
	area.remove();
	return isCopied;
}
