/*
 * Tokens of markdown.js as elements. Text becomes text nodes, attributes are ours, and only
 * http, https and mailto addresses become links; nothing is ever loaded from one.
 */

import { copyButton, make } from "./dom.js";
import { highlighted } from "./highlight.js";
import { address, parse } from "./markdown.js";

const MAX_DEPTH = 64; // of elements; what is nested deeper stands in the last one
const TASK = /^\[([ xX])\] /;
const NAMES = new Set(["blockquote", "ul", "ol", "li", "thead", "tbody", "tr", "th", "td", "em", "strong"]);

/** The elements of *text*. */
export function render(text) {
  return blocksOf(text).flatMap(elements);
}

/** The blocks of *text*, each with its tokens and the number of its first line. */
function blocksOf(text) {
  const blocks = [];
  for (const token of parse(text)) {
    if (token.level === 0 && token.nesting >= 0) blocks.push({ line: token.map[0], tokens: [] });
    blocks[blocks.length - 1].tokens.push(token);
  }
  return blocks;
}

function elements({ tokens }) {
  const root = make("div");
  append(root, tokens);
  return [...root.childNodes];
}

/** Append to *root* what *tokens* stand for. */
function append(root, tokens, around = []) {
  const stack = [root];
  tokens.forEach((token, place) => {
    const top = stack[stack.length - 1];
    if (token.nesting < 0) stack.pop();
    else if (token.type === "inline") {
      if (tokens[place - 2]?.type === "list_item_open") checkbox(top, token);
      append(top, token.children, [...around, ...stack]);
    } else if (token.nesting > 0) {
      const isDeep = around.length + stack.length > MAX_DEPTH;
      stack.push(isDeep ? top : opened(token, top));
    } else top.append(leaf(token, [...around, ...stack]));
  });
}

/** The element that *token* opens, in *top*. */
function opened(token, top) {
  let element;
  if (token.type === "heading_open") element = make(`h${Math.min(6, Number(token.tag[1]) + 2)}`);
  else if (token.type === "paragraph_open") element = make(token.hidden ? "span" : "p");
  else if (token.type === "link_open") element = link(token.attrGet("href"));
  else if (token.type === "s_open") element = make("del");
  else if (token.type === "table_open") {
    element = make("table");
    top.append(make("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, element));
    return element;
  } else {
    const align = token.attrGet("style")?.replace("text-align:", "");
    const attributes = { class: align, start: token.attrGet("start"), scope: token.tag === "th" ? "col" : null };
    element = make(NAMES.has(token.tag) ? token.tag : "span", attributes);
  }
  top.append(element);
  return element;
}

function leaf(token, around) {
  switch (token.type) {
    case "fence": case "code_block": return code(codeOf(token));
    case "hr": return make("hr");
    case "softbreak": case "hardbreak": return make("br");
    case "code_inline": return make("code", {}, token.content);
    case "formula_block": return make("p", { class: "math" }, token.content);
    case "formula_inline": return make("span", { class: "math" }, token.content);
    case "image": {
      const isInLink = around.some((element) => element.localName === "a");
      const element = isInLink ? make("span") : link(token.attrGet("src"));
      append(element, token.children, [...around, element]);
      return element;
    }
    default: return token.content;
  }
}

function link(given) {
  const href = address(given);
  return href ? make("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }) : make("span");
}

/** Make a task of the item whose first paragraph is *element*, if its text begins as one. */
function checkbox(element, { children: [first] }) {
  const task = first?.type === "text" && TASK.exec(first.content);
  if (!task) return;
  first.content = first.content.slice(task[0].length);
  const checked = task[1] !== " ";
  element.before(make("input", { type: "checkbox", disabled: true, checked, "aria-label": checked ? "done" : "to do" }), " ");
  element.parentElement.className = "task";
}

/** Language and text of a block of code, and whether its end is there. */
function codeOf({ type, info, content, map: [start, end] }) {
  const text = content.endsWith("\n") ? content.slice(0, -1) : content;
  const lines = content ? text.split("\n").length : 0;
  const language = info.trim().split(/\s/, 1)[0].slice(0, 40);
  return { language, text, closed: type !== "fence" || end - start - 1 > lines };
}

function code({ language, text }) {
  const inside = make("code", {}, highlighted(text, language));
  const caption = make("figcaption", {}, make("span", {}, language), copyButton(() => inside.textContent, "code"));
  const label = language ? `Code, ${language}` : "Code";
  return make("figure", { class: "code" }, caption, make("pre", { tabindex: "0", role: "region", "aria-label": label }, inside));
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
    if (text.includes("\r")) text = text.replace(/\r\n?/g, "\n");
    if (!ended) this.settle(text);
    const blocks = blocksOf(text.slice(this.start));
    const [token] = blocks[blocks.length - 1]?.tokens ?? [];
    const last = token?.type === "fence" && !ended && blocks.length === 1 ? codeOf(token) : null;
    const isOpen = last !== null && !last.closed;
    if (isOpen && this.growing && this.language === last.language) {
      const shown = this.growing.data;
      if (last.text.startsWith(shown)) this.growing.appendData(last.text.slice(shown.length));
      else this.growing.data = last.text;
      return;
    }
    for (const element of this.tail) element.remove();
    if (!isOpen) this.growing = null;
    this.tail = isOpen ? [this.open(last)] : blocks.flatMap(elements);
    for (const element of this.tail) this.element.append(element);
  }

  /** Make, once and for all, the blocks behind which a complete line has begun another. */
  settle(text) {
    const end = text.lastIndexOf("\n") + 1;
    if (end <= this.start) return;
    const part = text.slice(this.start, end);
    const blocks = blocksOf(part);
    if (blocks.length < 2) return;
    for (const element of this.tail) element.remove();
    this.tail = [];
    this.growing = null;
    for (const element of blocks.slice(0, -1).flatMap(elements)) this.element.append(element);
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
