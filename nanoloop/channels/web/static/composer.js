// The field for writing a message: text, files, send, stop; and editing the last one.

import { upload } from "./api.js";
import { byId, on } from "./element.js";
import { inTab } from "./kept.js";
import { fileItem } from "./message.js";

const TALLEST = 260;

export class Composer {
	#files = []; // { kind, name, size, url, id?, note?, failed? }
	#editing = null;
	#key = "";

	/** `send(text, attachments)` and `edit(text)` return whether it was accepted; `stop()`, `editLast()`. */
	constructor(acts) {
		this.acts = acts;
		this.text = byId("text");
		on("composer", "submit", (event) => this.#submit(event));
		on("text", "keydown", (event) => this.#typed(event));
		on("text", "input", () => this.#changed());
		on("text", "paste", (event) => this.#take(event, event.clipboardData));
		on("attach", "click", () => byId("file").click());
		on("file", "change", ({ target }) => this.#add(target.files));
		on("stop", "click", () => acts.stop());
		on("cancel-edit", "click", () => this.#endEdit());
		this.#listenForDrops();
	}

	/** The draft for this session. */
	open(key) {
		this.#endEdit();
		this.#key = `draft.${key ?? ""}`;
		this.#fill(inTab.get(this.#key) ?? "", []);
	}

	setBusy(isBusy) {
		byId("stop").hidden = !isBusy;
	}

	edit(entry) {
		this.#editing = entry;
		byId("editing").hidden = false;
		this.#fill(entry.text);
		this.text.focus();
	}

	#endEdit() {
		if (!this.#editing) return;
		this.#editing = null;
		byId("editing").hidden = true;
		this.#fill("");
		this.text.focus();
	}

	#fill(text, files = this.#files) {
		this.text.value = text;
		this.#files = files;
		this.#showFiles();
	}

	#changed() {
		if (!this.#editing) inTab.set(this.#key, this.text.value);
		this.text.style.height = "auto";
		this.text.style.height = `${Math.min(this.text.scrollHeight, TALLEST)}px`;
		byId("send").disabled = !this.text.value.trim() && !this.#files.some(({ failed }) => !failed);
	}

	#typed(event) {
		if (event.isComposing) return; // an input method's own Enter and Escape
		if (event.key === "Enter" && !event.shiftKey) {
			this.#submit(event);
		} else if (event.key === "Escape" && this.#editing) {
			event.stopPropagation();
			this.#endEdit();
		} else if (event.key === "ArrowUp" && !this.text.value) {
			event.preventDefault();
			this.acts.editLast();
		}
	}

	async #submit(event) {
		event.preventDefault();
		if (this.#editing) {
			if (await this.acts.edit(this.text.value.trim())) this.#endEdit();
			return;
		}
		await Promise.all(this.#files.map(({ uploaded }) => uploaded));
		const [text, files] = [this.text.value.trim(), this.#files.filter(({ id }) => id)];
		if (!text && !files.length) return;
		this.#fill("", []);
		if (!(await this.acts.send(text, files))) this.#fill(text, files);
	}

	// Files

	#add(files) {
		for (const file of files) {
			const isPicture = file.type.startsWith("image/");
			const shown = { kind: isPicture ? "image" : "file", name: file.name, note: "uploading …" };
			if (isPicture) shown.url = URL.createObjectURL(file);
			shown.uploaded = this.#upload(file, shown);
			this.#files.push(shown);
		}
		byId("file").value = ""; // the same one may be chosen again
		this.#showFiles();
		this.text.focus();
	}

	async #upload(file, shown) {
		try {
			Object.assign(shown, await upload(file), { note: null });
		} catch (error) {
			Object.assign(shown, { failed: true, note: error.message });
		}
		this.#showFiles();
	}

	#showFiles() {
		const remove = (file) => () => {
			this.#files = this.#files.filter((each) => each !== file);
			this.#showFiles();
			this.text.focus();
		};
		byId("files").replaceChildren(...this.#files.map((file) => fileItem(file, remove(file))));
		this.#changed();
	}

	#take(event, { files }) {
		if (!files.length) return;
		event.preventDefault();
		this.#add(files);
	}

	#listenForDrops() {
		const hasFiles = ({ dataTransfer }) => dataTransfer.types.includes("Files");
		const show = (isOver) => document.body.classList.toggle("dropping", isOver);
		document.addEventListener("dragover", (event) => {
			if (!hasFiles(event)) return;
			event.preventDefault();
			show(true);
		});
		document.addEventListener("dragleave", ({ relatedTarget }) => relatedTarget ?? show(false));
		document.addEventListener("drop", (event) => {
			show(false);
			if (hasFiles(event)) this.#take(event, event.dataTransfer);
		});
	}
}
