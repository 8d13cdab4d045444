/*
 * The inside of a paragraph as a tree: strings, and nodes {type, ...}.
 *
 * Time is linear in the length of the text: a search that failed is not made again, a part of the
 * tree is moved once, and what is nested deeper than MAX_DEPTH stays as it was typed. HTML and
 * images are text and links; a formula is left as it is.
 */

const MAX_DEPTH = 30;
const MAX_BRACKETS = 32; // nested in the address of a link
const MAX_TITLE = 300;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", "#39": "'", nbsp: "\u00a0" };
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const SPECIAL = /[\\`*_~[\]!<&$\n]|https?:\/\//g;
const BARE_LINK = /https?:\/\/[^\s<>"`]+/y;
const ANGLE_LINK = /<(https?:\/\/[^\s<>]*|mailto:[^\s<>]*)>/y;
const LINE_BREAK = /<br ?\/?>/iy;
const ENTITY = /&(#?\w{1,6});/y;

/** Nodes of *text*: {type: "code" | "math", text}, {type: "br"}, {type: "link", href, children}, and
 * {type: "strong" | "em" | "del", children}. */
export function parseInline(text) {
  return new Scan(text).run();
}

/** The text of *all* nodes, without markup. */
export function plain(all) {
  return all.map((node) => {
    if (typeof node === "string") return node;
    if (node.type === "br") return " ";
    return node.children ? plain(node.children) : node.text;
  }).join("");
}

class Scan {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.items = []; // strings, nodes, and marks: {mark, ...} that may become nodes
    this.brackets = []; // places in items of "[" that may begin a link
    this.found = new Map(); // where the next of each end is; -1: nowhere
    this.lastRun = null; // where the last run of so many backticks begins
  }

  run() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      const next = found ? found.index : text.length;
      if (next > this.at) this.items.push(text.slice(this.at, next));
      this.at = next;
      if (found && !this.special(found[0])) {
        this.items.push(found[0]);
        this.at += found[0].length;
      }
    }
    return paired(this.items);
  }

  /** Take what begins with *character* here; false: it is only that character. */
  special(character) {
    switch (character[0]) {
      case "\\": return this.escape();
      case "`": return this.code();
      case "*": case "_": case "~": return this.emphasis(character);
      case "[": return this.open(1);
      case "!": return this.text[this.at + 1] === "[" && this.open(2);
      case "]": return this.close();
      case "<": return this.angle();
      case "&": return this.entity();
      case "$": return this.dollar();
      case "h": return this.bare();
      default: return this.newline();
    }
  }

  take(node, end) {
    this.items.push(node);
    this.at = end;
    return true;
  }

  matched(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  /** Where the first *end* from *start* on is, or -1. */
  find(end, start) {
    let place = this.found.get(end);
    if (place === undefined || (place >= 0 && place < start)) {
      place = this.text.indexOf(end, start);
      this.found.set(end, place);
    }
    return place;
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "(" || next === "[") {
      const end = this.find(next === "(" ? "\\)" : "\\]", this.at + 2);
      if (end >= 0) return this.math(end + 2);
    }
    if (next === "\n") return this.take({ type: "br" }, this.at + 2);
    return next !== undefined && ESCAPABLE.test(next) && this.take(next, this.at + 2);
  }

  math(end) {
    return this.take({ type: "math", text: this.text.slice(this.at, end) }, end);
  }

  dollar() {
    const { text, at } = this;
    if (text[at + 1] === "$") {
      const end = this.find("$$", at + 2);
      return end >= 0 ? this.math(end + 2) : this.take("$$", at + 2);
    }
    const end = this.find("$", at + 1);
    if (end < 0) return false;
    const inside = text.slice(at + 1, end);
    const isMath = end > at + 1 && !/^\s|\s$|\n/.test(inside) && !/\d/.test(text[end + 1] ?? "");
    return isMath && this.math(end + 1);
  }

  code() {
    const { text, at } = this;
    let start = at;
    while (text[start] === "`") start += 1;
    const size = start - at;
    if (!this.lastRun) {
      this.lastRun = new Map();
      for (const run of text.matchAll(/`+/g)) this.lastRun.set(run[0].length, run.index);
    }
    if ((this.lastRun.get(size) ?? -1) <= at) return this.take(text.slice(at, start), start);
    let end = start;
    for (;;) {
      end = text.indexOf("`", end);
      let after = end;
      while (text[after] === "`") after += 1;
      if (after - end === size) break;
      end = after;
    }
    let inside = text.slice(start, end).replaceAll("\n", " ");
    if (/^ .*[^ ].* $/.test(inside)) inside = inside.slice(1, -1);
    return this.take({ type: "code", text: inside }, end + size);
  }

  emphasis(character) {
    const { text, at } = this;
    let end = at;
    while (text[end] === character) end += 1;
    const count = end - at;
    if (character === "~" && count !== 2) return this.take(text.slice(at, end), end);
    const before = text[at - 1] ?? " ", after = text[end] ?? " ";
    const opens = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const closes = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    const inWord = character === "_" && opens && closes;
    const mark = {
      mark: character,
      count,
      size: count,
      opens: opens && (!inWord || PUNCTUATION.test(before)),
      closes: closes && (!inWord || PUNCTUATION.test(after)),
    };
    return this.take(mark, end);
  }

  open(size) {
    this.brackets.push(this.items.length);
    return this.take(this.text.slice(this.at, this.at + size), this.at + size);
  }

  close() {
    const start = this.brackets.pop();
    if (start === undefined || this.text[this.at + 1] !== "(") return false;
    const end = this.address(this.at + 2);
    if (!end) return false;
    const children = paired(this.items.splice(start).slice(1));
    this.brackets.length = 0; // no link within a link
    const depth = 1 + children.reduce((most, child) => Math.max(most, child.depth ?? 0), 0);
    return this.take({ type: "link", depth, href: end.href, children }, end.after);
  }

  /** The address of a link that begins at *start*, and where its ")" ends; null: there is none. */
  address(start) {
    const { text } = this;
    if (this.find(")", start) < 0) return null;
    let end = start, depth = 0;
    for (; end < text.length; end += 1) {
      const character = text[end];
      if (character <= " ") break;
      if (character === "(" && (depth += 1) > MAX_BRACKETS) return null;
      if (character === ")" && (depth -= 1) < 0) break;
      if (character === "\\") end += 1;
    }
    const href = text.slice(start, end).replace(/\\([!-/:-@[-`{-~])/g, "$1");
    if (text[end] === ")") return { href, after: end + 1 };
    const title = /^[ \n]{1,9}("[^"]*"|'[^']*')\)/.exec(text.slice(end, end + MAX_TITLE));
    return title && { href, after: end + title[0].length };
  }

  angle() {
    const link = this.matched(ANGLE_LINK);
    if (link) return this.take({ type: "link", href: link[1], children: [link[1]] }, this.at + link[0].length);
    const line = this.matched(LINE_BREAK);
    return line !== null && this.take({ type: "br" }, this.at + line[0].length);
  }

  entity() {
    const found = this.matched(ENTITY);
    if (!found || !Object.hasOwn(ENTITIES, found[1])) return false;
    return this.take(ENTITIES[found[1]], this.at + found[0].length);
  }

  bare() {
    const { text, at } = this;
    const found = /\w/.test(text[at - 1] ?? " ") ? null : this.matched(BARE_LINK);
    if (!found) return false;
    let end = at + found[0].length;
    let opened = 0;
    for (const character of found[0]) opened += character === "(" ? 1 : character === ")" ? -1 : 0;
    while (end > at && /[.,;:!?'*_~)\]|$\\]/.test(text[end - 1])) {
      if (text[end - 1] === ")") {
        if (opened >= 0) break;
        opened += 1;
      }
      end -= 1;
    }
    const href = text.slice(at, end);
    return this.take({ type: "link", href, children: [href] }, end);
  }

  newline() {
    const last = this.items.length - 1;
    if (typeof this.items[last] === "string") this.items[last] = this.items[last].replace(/ {1,9}$/, "");
    return this.take({ type: "br" }, this.at + 1);
  }
}

/** Nodes of *items*, where marks that belong together have become nodes, and others text. */
function paired(items) {
  const out = [];
  const openers = []; // {item, at: its place in out, inner: depth of what came after it}
  const bottom = {}; // below which there is no opener for a kind of closer
  const put = (node) => {
    out.push(node);
    if (openers.length) openers[openers.length - 1].inner = Math.max(openers[openers.length - 1].inner, node.depth ?? 0);
  };
  for (const item of items) {
    if (!item.mark) {
      put(item);
      continue;
    }
    while (item.closes && item.count) {
      const kind = item.mark + item.opens + (item.size % 3);
      const lowest = bottom[kind] ?? 0;
      let place = openers.length - 1;
      while (place >= lowest && !fits(openers[place].item, item)) place -= 1;
      if (place < lowest) {
        bottom[kind] = openers.length;
        break;
      }
      const opener = openers[place];
      for (const passed of openers.splice(place + 1)) opener.inner = Math.max(opener.inner, passed.inner);
      if (opener.inner >= MAX_DEPTH) { // what is around it would be deeper still
        openers.length = 0;
        break;
      }
      const used = item.mark === "~" ? 2 : Math.min(2, opener.item.count, item.count);
      const type = item.mark === "~" ? "del" : used === 2 ? "strong" : "em";
      const node = { type, depth: opener.inner + 1, children: joined(out.splice(opener.at + 1)) };
      opener.item.count -= used;
      item.count -= used;
      out[opener.at] = item.mark.repeat(opener.item.count);
      opener.inner = 0;
      if (!opener.item.count) openers.pop();
      put(node);
      for (const name of Object.keys(bottom)) bottom[name] = Math.min(bottom[name], openers.length);
    }
    if (item.count) {
      if (item.opens) openers.push({ item, at: out.length, inner: 0 });
      out.push(item.mark.repeat(item.count));
    }
  }
  return joined(out);
}

function fits(opener, closer) {
  if (opener.mark !== closer.mark) return false;
  const odd = (opener.closes || closer.opens) && (opener.size + closer.size) % 3 === 0;
  return !odd || (opener.size % 3 === 0 && closer.size % 3 === 0);
}

function joined(nodes) {
  const out = [];
  for (const node of nodes) {
    if (typeof node === "string" && typeof out[out.length - 1] === "string") out[out.length - 1] += node;
    else if (node !== "") out.push(node);
  }
  return out;
}
