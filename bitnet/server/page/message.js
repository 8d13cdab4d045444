/* One message on the page: its text, why it was cut, and what can be done with it. */

import { copyButton, make } from "./dom.js";
import { Streamed } from "./render.js";

const THINKING = "<think>";
const THOUGHT = "</think>";

/** Why an answer is not whole; "" if it is. */
export function cut(node) {
  switch (node.end) {
    case "stop": return divided(node.content, true).said?.trim() ? "" : "The answer is empty.";
    case "length": return "Cut off: the limit of tokens for an answer, or the end of the context, was reached.";
    case "cancelled": return "Cut off: the worker had to stop before the answer was complete.";
    case "deadline": return `Cut off by the worker's deadline: ${node.detail}.`;
    case "stopped": return "You stopped this answer.";
    case "error": return `Cut off by an error: ${node.detail}`;
    case "": return "This answer is not complete: its page was closed, or another tab is still writing it.";
    default: return `Ended early: ${node.end}`;
  }
}

export class Message {
  /**
   * @param {object} node of tree.js
   * @param {object} actions edit(node, text), regenerate(node), proceed(node), select(node)
   */
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.tools = make("div", { class: "tools" });
    const isMine = node.role === "user";
    this.title = make("h2", {}, isMine ? "You" : node.model || "Model");
    this.element = make("article", { class: node.role }, this.title);
    if (isMine) {
      this.body = make("div", { class: "said" }, node.content);
      this.body.hidden = !node.content;
      this.element.append(...(node.files ?? []).map(fileOf), this.body, this.tools);
    } else {
      this.note = make("p", { class: "cut", hidden: true });
      this.rate = make("p", { class: "quiet", "aria-hidden": "true", hidden: true });
      this.element.append(this.note, this.rate, this.tools);
      this.parts = {};
    }
  }

  /** Show the text as it is now; *isWriting*: more may come. */
  draw(isWriting) {
    if (this.node.role === "user") return;
    this.title.textContent = this.node.model || "Model";
    const { thought, said } = this.node.thought
      ? { thought: this.node.thought, said: this.node.content || null } : divided(this.node.content, !isWriting);
    if (thought !== null) this.part("thinking", thought, isWriting && said === null);
    this.part("answer", said ?? "", isWriting);
    if (isWriting) this.element.setAttribute("aria-busy", "true");
    else this.element.removeAttribute("aria-busy");
    this.rate.hidden = !isWriting || !this.node.tokens;
    this.rate.textContent = metricsOf(this.node);
    const reason = isWriting ? "" : cut(this.node);
    this.note.hidden = !reason;
    this.note.textContent = reason;
  }

  part(name, text, isWriting) {
    if (!this.parts[name]) {
      const view = new Streamed();
      this.parts[name] = view;
      if (name === "answer") this.note.before(view.element);
      else this.title.after(make("details", { class: "thinking" }, make("summary", {}, "Thinking"), view.element));
    }
    this.parts[name].update(text, !isWriting);
  }

  /** Show what can be done; *versions*: this message and those beside it; *isWriting*: not yet. */
  refresh(versions, { isWriting, isLast }) {
    this.tools.replaceChildren();
    this.tools.hidden = isWriting;
    const { node, actions } = this;
    const name = node.role === "user" ? "message" : "answer";
    this.tools.append(copyButton(() => node.content, name));
    if (node.role === "user") this.tools.append(this.tool("Edit", () => this.edit()));
    else this.tools.append(this.tool("Regenerate", () => actions.regenerate(node)));
    const isPart = node.role === "assistant" && isLast && (node.content || node.thought) && cut(node);
    if (isPart) this.tools.append(this.tool("Continue", () => actions.proceed(node)));
    if (versions.length > 1) this.tools.append(this.switcher(versions));
    if (node.tokens) this.tools.append(make("span", { class: "metrics" }, metricsOf(node)));
  }

  tool(text, onclick) {
    return make("button", { type: "button", class: "plain idle", onclick }, text);
  }

  switcher(versions) {
    const place = versions.indexOf(this.node);
    const step = (label, sign, other) => make("button", {
      type: "button", class: "plain", "aria-label": label, disabled: !other, onclick: () => this.actions.select(other),
    }, sign);
    return make("span", { class: "versions idle" },
      step("Previous version", "‹", versions[place - 1]), ` ${place + 1}/${versions.length} `,
      step("Next version", "›", versions[place + 1]));
  }

  /** Let the text be changed and sent again; *text*: what to begin with. */
  edit(text = this.node.content) {
    if (this.editor) return;
    const area = make("textarea", { "aria-label": "Edited message" });
    area.value = text;
    const close = () => {
      this.editor.remove();
      this.editor = null;
      this.body.hidden = !this.node.content;
      this.tools.hidden = false;
    };
    const cancel = () => {
      close();
      this.tools.querySelector("button.idle")?.focus();
    };
    const send = () => {
      const changed = area.value.trim();
      if (!(changed || this.node.files) || document.body.hasAttribute("data-busy")) return;
      close();
      this.actions.edit(this.node, changed);
    };
    area.onkeydown = (event) => {
      if (event.key === "Escape") cancel();
      else if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      else send();
      event.preventDefault();
      event.stopPropagation();
    };
    const row = make("div", { class: "row" },
      make("button", { type: "button", class: "idle", onclick: send }, "Send again"),
      make("button", { type: "button", class: "plain", onclick: cancel }, "Cancel"));
    this.editor = make("div", { class: "editor" }, area, row);
    this.body.hidden = this.tools.hidden = true;
    this.body.after(this.editor);
    area.focus();
  }
}

/** The thoughts at the beginning of an answer and the rest; null: there is none, or not yet. *ended*: no more comes. */
export function divided(text, ended = false) {
  const start = text.trimStart();
  if (!ended && start && THINKING.startsWith(start)) return { thought: null, said: null }; // it may become that
  if (!start.startsWith(THINKING)) return { thought: null, said: text };
  const end = start.indexOf(THOUGHT);
  if (end < 0) return { thought: start.slice(THINKING.length), said: null };
  return { thought: start.slice(THINKING.length, end), said: start.slice(end + THOUGHT.length).trimStart() };
}

/** A file of a message, folded. */
function fileOf({ name, text }) {
  return make("details", { class: "file" }, make("summary", {}, name), make("pre", { tabindex: "0" }, text));
}

function metricsOf({ tokens, seconds }) {
  const rate = tokens > 1 && seconds > 0 ? `, ${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  return `${tokens} token${tokens > 1 ? "s" : ""}${rate}`;
}
