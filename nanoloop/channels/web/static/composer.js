// Where a message is written: text, files, send, stop; and the last one edited.

import { upload } from "./api.js";
import { byId } from "./element.js";
import { fileItem } from "./message.js";

const TALLEST = 260;

export class Composer {
  #files = []; // { kind, name, size, url, id?, note?, failed? }
  #editing = null;
  #key = "";

  /** `send(text, attachments)`, `edit(text)`: whether it was taken; `stop()`, `editLast()`. */
  constructor(on) {
    this.on = on;
    this.form = byId("composer");
    this.text = byId("text");
    this.form.addEventListener("submit", (event) => (event.preventDefault(), this.#submit()));
    this.text.addEventListener("keydown", (event) => this.#typed(event));
    this.text.addEventListener("input", () => this.#changed());
    this.text.addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    byId("attach").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", ({ target }) => (this.add(target.files), (target.value = "")));
    byId("stop").addEventListener("click", () => this.on.stop());
    byId("cancel-edit").addEventListener("click", () => this.#endEdit());
    this.#listenForDrops();
  }

  /** What was begun for this session, and not sent. */
  open(key) {
    this.#endEdit();
    this.#key = `nanoloop.draft.${key ?? ""}`;
    this.#files = [];
    this.#fill(sessionStorage.getItem(this.#key) ?? "");
    this.#showFiles();
  }

  setBusy(isBusy) {
    this.form.classList.toggle("busy", isBusy);
    byId("stop").hidden = !isBusy;
    this.#changed();
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

  #fill(text) {
    this.text.value = text;
    this.#changed();
  }

  #changed() {
    if (!this.#editing) this.#keepDraft();
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, TALLEST)}px`;
    const isEmpty = !this.text.value.trim() && !this.#files.some(({ id }) => id);
    byId("send").disabled = isEmpty || this.#files.some(({ isUploading }) => isUploading);
  }

  #keepDraft() {
    try {
      sessionStorage.setItem(this.#key, this.text.value);
    } catch {
      // No room: the draft lasts as long as the page.
    }
  }

  #typed(event) {
    if (event.isComposing) return; // an input method's own Enter and Escape
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.#submit();
    } else if (event.key === "Escape" && this.#editing) {
      event.stopPropagation();
      this.#endEdit();
    } else if (event.key === "ArrowUp" && !this.text.value) {
      event.preventDefault();
      this.on.editLast();
    }
  }

  async #submit() {
    if (byId("send").disabled) return;
    const text = this.text.value.trim();
    if (this.#editing) {
      if (await this.on.edit(text)) this.#endEdit();
      return;
    }
    const files = this.#files.filter(({ id }) => id);
    this.#files = [];
    this.#fill("");
    this.#showFiles();
    if (await this.on.send(text, files)) return;
    this.#files = files;
    this.#fill(text);
    this.#showFiles();
  }

  // Files

  add(files) {
    for (const file of files) this.#upload(file);
    this.text.focus();
  }

  async #upload(file) {
    const isPicture = file.type.startsWith("image/");
    const shown = { kind: isPicture ? "image" : "file", name: file.name, size: file.size, isUploading: true, note: "uploading …" };
    if (isPicture) shown.url = URL.createObjectURL(file);
    this.#files.push(shown);
    this.#showFiles();
    try {
      Object.assign(shown, await upload(file), { note: undefined });
    } catch (error) {
      Object.assign(shown, { failed: true, note: error.message });
    }
    shown.isUploading = false;
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
    this.add(files);
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
