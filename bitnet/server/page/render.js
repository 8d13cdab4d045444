/*
 * Blocks of markdown.js as elements. Text becomes text nodes, attributes are ours, and only
 * http, https and mailto addresses become links; nothing is ever loaded from one.
 */

import { copyButton, make } from "./dom.js";
import { highlighted } from "./highlight.js";
import { parseInline } from "./inline.js";
import { parse } from "./markdown.js";

const SCHEMES = new Set(["http:", "https:", "mailto:"]);

/** The elements of *text*. */
export function render(text) {
  return parse(text).map(block);
}

function block(one) {
  switch (one.type) {
    case "heading": return element(`h${Math.min(6, one.level + 2)}`, inline(one.text));
    case "code": return code(one);
    case "math": return make("p", { class: "math" }, one.text);
    case "quote": return element("blockquote", one.blocks.map(block));
    case "list": return list(one);
    case "table": return table(one);
    case "rule": return make("hr");
    default: return element("p", inline(one.text));
  }
}

function inline(text) {
  return nodes(parseInline(text), false);
}

function nodes(all, inLink) {
  return all.map((node) => {
    if (typeof node === "string") return node;
    if (node.type === "br") return make("br");
    if (node.type === "code") return make("code", {}, node.text);
    if (node.type === "math") return make("span", { class: "math" }, node.text);
    if (node.type === "link") return link(node, inLink);
    return element(node.type, nodes(node.children, inLink));
  });
}

/** An element with any number of children: spread, too many of them overflow the stack. */
function element(kind, children, attributes = {}) {
  const made = make(kind, attributes);
  for (const child of children) made.append(child);
  return made;
}

function link(node, inLink) {
  const children = nodes(node.children.length ? node.children : [node.href], true);
  const href = address(node.href);
  if (!href) return element("span", ["[", element("span", children), `](${node.href})`]);
  if (inLink) return element("span", children);
  return element("a", children, { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" });
}

/** *href* if it is one that may be followed. */
function address(href) {
  try {
    const url = new URL(href);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function code({ language, text }) {
  const inside = make("code", {}, highlighted(text, language));
  const caption = make("figcaption", {}, make("span", {}, language), copyButton(() => inside.textContent, "code"));
  const label = language ? `Code, ${language}` : "Code";
  return make("figure", { class: "code" }, caption, make("pre", { tabindex: "0", role: "region", "aria-label": label }, inside));
}

function list(one) {
  const items = one.items.map(({ checked, blocks }) => {
    const inside = [];
    if (checked !== null) inside.push(make("input", { type: "checkbox", disabled: true, checked, "aria-label": checked ? "done" : "to do" }), " ");
    for (const child of blocks) {
      const isTight = child.type === "paragraph" && !one.loose;
      inside.push(isTight ? element("span", inline(child.text)) : block(child));
    }
    return element("li", inside, { class: checked === null ? null : "task" });
  });
  const isLater = one.ordered && one.start !== 1;
  return element(one.ordered ? "ol" : "ul", items, { start: isLater ? one.start : null });
}

function table({ align, head, rows }) {
  const row = (kind, cells) => element("tr", cells.map((cell, column) => element(kind, inline(cell), { class: align[column] || null, scope: kind === "th" ? "col" : null })));
  const body = element("tbody", rows.map((cells) => row("td", cells)));
  const whole = make("table", {}, make("thead", {}, row("th", head)), body);
  return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, whole);
}

/**
 * Markdown that comes in parts. Blocks that cannot change any more are made once; only the last one
 * is made again with every part, and code that is being written grows in place.
 */
export class Streamed {
  constructor() {
    this.element = make("div", { class: "markdown" });
    this.start = 0; // of the first block that can still change
    this.tail = []; // its elements
    this.growing = null; // the text node of code that is being written
    this.language = ""; // of that code
  }

  /** Show *text*, which begins with what was shown before; *ended*: nothing will follow. */
  update(text, ended = false) {
    if (!ended) this.settle(text);
    const blocks = parse(text.slice(this.start));
    const last = blocks[blocks.length - 1];
    const isOpen = !ended && blocks.length === 1 && last.type === "code" && !last.closed;
    if (isOpen && this.growing && this.language === last.language) {
      const shown = this.growing.data;
      if (last.text.startsWith(shown)) this.growing.appendData(last.text.slice(shown.length));
      else this.growing.data = last.text;
      return;
    }
    for (const element of this.tail) element.remove();
    this.tail = blocks.map((one) => (isOpen && one === last ? this.open(one) : block(one)));
    if (!isOpen) this.growing = null;
    for (const element of this.tail) this.element.append(element);
  }

  /** Make the blocks that whole lines have ended. */
  settle(text) {
    const end = text.lastIndexOf("\n") + 1;
    if (end <= this.start) return;
    const part = text.slice(this.start, end);
    const blocks = parse(part);
    if (blocks.length < 2) return;
    for (const element of this.tail) element.remove();
    this.tail = [];
    this.growing = null;
    for (const one of blocks.slice(0, -1)) this.element.append(block(one));
    let offset = 0;
    for (let line = 0; line < blocks[blocks.length - 1].line; line += 1) offset = part.indexOf("\n", offset) + 1;
    this.start += offset;
  }

  open(one) {
    const figure = code({ ...one, text: "" });
    this.growing = document.createTextNode(one.text);
    this.language = one.language;
    figure.querySelector("code").append(this.growing);
    return figure;
  }
}
