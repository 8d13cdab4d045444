/* The conversation on the page: its messages, and where it is scrolled to. */

import { at, make } from "./dom.js";
import { Message } from "./message.js";
import { path, versions } from "./tree.js";

const NEAR = 48; // pixels from the end that count as the end
const EXAMPLES = [
  "Explain what a hash table is, with a short example.",
  "Write a Python function that counts the words of a text file.",
  "Rewrite this sentence so that it is easier to read: ",
];
const PAUSE = 4; // times as long as a drawing took until the next: at most a fifth of the time is drawing

export class Talk {
  /** Show conversations in *element*; *actions* as for {@link Message}, and draft(text) fills the box. */
  constructor(element, actions) {
    this.element = element;
    this.actions = actions;
    this.shown = new Map(); // of nodes
    this.following = true; // the end, as it moves
    this.frame = 0;
    this.notBefore = 0;
    element.onscroll = () => this.scrolled();
    new ResizeObserver(() => this.follow()).observe(element);
    at("latest").onclick = () => {
      this.following = true;
      this.follow();
    };
  }

  /** Show *conversation*; *writing* is the node that is being written, if any. */
  show(conversation, writing) {
    const nodes = path(conversation);
    const before = this.shown;
    this.shown = new Map();
    for (const node of nodes) {
      let message = before.get(node);
      if (!message) {
        message = new Message(node, this.actions);
        message.draw(node === writing);
      }
      message.refresh(versions(conversation, node), { isWriting: node === writing, isLast: node.id === conversation.leaf });
      this.shown.set(node, message);
    }
    const wanted = [...this.shown.values()].map((message) => message.element);
    if (!wanted.length) wanted.push(this.invitation());
    const kept = [...this.element.children];
    if (wanted.length !== kept.length || wanted.some((element, place) => element !== kept[place])) {
      this.element.replaceChildren(...wanted);
    }
    this.follow();
  }

  /** What an empty conversation shows: how to begin, with examples that fill the box. */
  invitation() {
    const examples = EXAMPLES.map((text) => make("button", { type: "button", class: "plain", onclick: () => this.actions.draft(text) }, text));
    return make("section", { class: "empty", "aria-label": "Examples" },
      make("p", {}, "Write a message below, or begin with one of these."),
      make("div", { class: "examples" }, ...examples));
  }

  /** The element of the message of *node*, which is shown. */
  elementOf(node) {
    return this.shown.get(node).element;
  }

  /** Show the end from now on, until it is scrolled away from. */
  toEnd() {
    this.following = true;
    this.follow();
  }

  /** More of *node* is there: draw it with the next frame that has the time. */
  progress(node) {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw(node));
  }

  draw(node) {
    const begin = performance.now();
    this.frame = 0;
    if (begin < this.notBefore) {
      this.progress(node);
      return;
    }
    this.shown.get(node)?.draw(true);
    this.notBefore = performance.now() + PAUSE * (performance.now() - begin);
    this.follow();
  }

  /** *node* is complete. */
  finish(node) {
    cancelAnimationFrame(this.frame);
    this.frame = this.notBefore = 0;
    this.shown.get(node)?.draw(false);
    this.follow();
  }

  /** Edit the message of *node*, if it is shown; *text* instead of what it says. */
  edit(node, text) {
    this.shown.get(node)?.edit(text);
  }

  follow() {
    if (this.following) this.element.scrollTop = this.element.scrollHeight;
    this.offerEnd();
  }

  scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    this.following = scrollHeight - scrollTop - clientHeight < NEAR;
    this.offerEnd();
  }

  offerEnd() {
    at("latest").hidden = this.following;
  }
}
