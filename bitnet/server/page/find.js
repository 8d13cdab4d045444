/* The messages of the open conversation in which any of the words of the search stands. */

import { at } from "./dom.js";

const MARK = "found"; // name of the highlight in chat.css

export class Find {
  /** @param {function} reveal shows a node of the conversation, and gives the element of its message */
  constructor(reveal) {
    this.reveal = reveal;
    this.id = null; // of the conversation
    this.nodes = [];
    this.place = -1;
    this.pattern = null;
    at("search").onkeydown = (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.step(event.shiftKey ? -1 : 1);
    };
    at("next-message").onclick = () => this.step(1);
    at("previous-message").onclick = () => this.step(-1);
  }

  /**
   * Look for any of the search's words in *conversation*, also in versions that are not shown.
   *
   * The place stays at its message while the words and the conversation are the same.
   */
  update(conversation) {
    const words = at("search").value.trim().split(/\s+/).filter(Boolean);
    const pattern = words.length ? new RegExp(words.map((word) => word.replace(/[^\p{L}\p{N}_]/gu, "\\$&")).join("|"), "gi") : null;
    const isSame = conversation.id === this.id && pattern?.source === this.pattern?.source;
    const last = isSame ? this.nodes[this.place] : null;
    this.id = conversation.id;
    this.pattern = pattern;
    this.nodes = pattern ? conversation.nodes.filter((node) => texts(node).some((text) => text.search(pattern) >= 0)) : [];
    this.place = last ? this.nodes.findIndex((node) => node.id === last.id) : -1;
    this.show();
  }

  /** Show the first of the messages. */
  first() {
    this.place = -1;
    this.step(1);
  }

  /** Show the next of the messages, or the one before where *by* is -1. */
  step(by) {
    const count = this.nodes.length;
    if (!count) return;
    this.place = this.place < 0 ? (by > 0 ? 0 : count - 1) : (this.place + by + count) % count;
    const element = this.reveal(this.nodes[this.place]);
    this.show();
    for (const details of element.querySelectorAll("details.file")) details.open = details.textContent.search(this.pattern) >= 0;
    element.scrollIntoView({ block: "nearest" });
  }

  show() {
    const count = this.nodes.length;
    at("places").hidden = !count;
    at("place").textContent = this.place < 0 ? `In ${count} message${count > 1 ? "s" : ""} here` : `Message ${this.place + 1} of ${count}`;
    CSS.highlights?.delete(MARK);
    const ranges = count ? [...rangesOf(at("talk"), this.pattern)] : [];
    if (ranges.length) CSS.highlights?.set(MARK, new Highlight(...ranges));
  }
}

function texts({ content, files = [] }) {
  return [content, ...files.flatMap(({ name, text }) => [name, text])];
}

function* rangesOf(element, pattern) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const match of node.data.matchAll(pattern)) {
      const range = new Range();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      yield range;
    }
  }
}
