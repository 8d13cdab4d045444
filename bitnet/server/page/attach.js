/* Text files that go with the next message. */

import { at, make } from "./dom.js";

const MOST_BYTES = 1 << 19; // of all files, which is more than most models have context for; a request may have more (--max-body)

export class Attachments {
  /** @param {function} problem is called with a text, "" for none */
  constructor(problem) {
    this.problem = problem;
    this.files = []; // {name, text}
    at("attach").onchange = async () => {
      await this.take([...at("attach").files]);
      at("attach").value = "";
    };
    document.ondragover = (event) => {
      if (event.dataTransfer.types.includes("Files")) event.preventDefault();
    };
    document.ondrop = (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.take([...event.dataTransfer.files]);
    };
    at("text").onpaste = (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.take([...event.clipboardData.files]);
    };
  }

  /** Add *files* that the person has chosen; one that is not text, or too large, is said to be so. */
  async take(files) {
    const refused = [];
    let bytes = this.files.reduce((sum, { text }) => sum + new Blob([text]).size, 0);
    for (const file of files) {
      if (bytes + file.size > MOST_BYTES) {
        refused.push(`${file.name} is not attached: all files may have ${MOST_BYTES / 1024} kB together`);
        continue;
      }
      try {
        const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
        if (text.includes("\0")) throw new TypeError("a NUL character");
        this.files.push({ name: file.name, text });
        bytes += file.size;
      } catch {
        refused.push(`${file.name} is not attached: it is not a text file in UTF-8`);
      }
    }
    this.problem(refused.join("\n"));
    this.set(this.files);
    at("text").focus();
  }

  /** Have *files* attached, and no others. */
  set(files) {
    this.files = files;
    at("attached").hidden = !files.length;
    at("attached").replaceChildren(...files.map((file) => make("li", {}, file.name, make("button", {
      type: "button", class: "plain", "aria-label": `Remove ${file.name}`, onclick: () => {
        this.set(this.files.filter((other) => other !== file));
        at("text").focus();
      },
    }, "×"))));
  }
}
