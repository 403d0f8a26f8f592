/** Files that are translated whole: chosen with a button or dropped anywhere on the page, one after the other. */

import { byId, make } from "./dom.js";
import { FileJob } from "./file_job.js";

const MEGABYTE = 1e6;

export class FileList {
  /**
   * @param {import("./language_choices.js").LanguageChoices} choices
   * @param {import("./api.js").Settings} settings
   * @param {import("./api_key_field.js").ApiKeyField} apiKeyField
   */
  constructor(choices, settings, apiKeyField) {
    this.choices = choices;
    this.endings = settings.supportedFilesFormat;
    this.limit = settings.fileLimit;
    this.apiKeyField = apiKeyField;
    this.list = byId("files");
    /** The end of all that was begun. @type {Promise<void>} */
    this.before = Promise.resolve();
    const input = byId("file");
    input.accept = this.endings.join(",");
    byId("formats").replaceChildren(
      make("span", { class: "by-mouse" }, "or drop them on this page: "),
      this.endings.join(", "),
    );
    byId("file-bar").hidden = false;
    byId("choose").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      this.#take([...input.files]);
      input.value = ""; // so that the same file can be chosen again
    });
    this.#catch(byId("drop"));
  }

  /** Whatever is dropped on the page, if it is files. @param {HTMLElement} sign */
  #catch(sign) {
    const carries = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
    addEventListener("dragover", (event) => {
      if (!carries(event)) return;
      event.preventDefault();
      sign.hidden = false;
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) sign.hidden = true; // out of the window
    });
    addEventListener("drop", (event) => {
      sign.hidden = true;
      if (!carries(event)) return;
      event.preventDefault();
      this.#take([...(event.dataTransfer?.files ?? [])]);
    });
  }

  /** @param {File[]} files */
  #take(files) {
    for (const file of files) {
      const job = new FileJob(file, this.choices, () => this.#settle());
      this.list.append(job.element);
      const wrong = this.#wrong(file);
      if (wrong) job.refuse(wrong);
      else this.before = this.before.then(() => job.run());
    }
    this.#settle();
  }

  /** Why a file is not sent; empty: it is. @param {File} file */
  #wrong({ name, size }) {
    const ending = name.slice(name.lastIndexOf(".")).toLowerCase();
    if (!this.endings.includes(ending))
      return `Files of this kind are not translated. Those that are: ${this.endings.join(", ")}`;
    if (!size) return "This file is empty.";
    if (this.limit >= 0 && size > this.limit)
      return `This file has ${megabytes(size)}; up to ${megabytes(this.limit)} are taken.`;
    return this.apiKeyField.missing;
  }

  #settle() {
    this.list.hidden = !this.list.children.length;
  }
}

/** @param {number} bytes */
const megabytes = (bytes) => `${(bytes / MEGABYTE).toLocaleString("en", { maximumSignificantDigits: 4 })} MB`;
