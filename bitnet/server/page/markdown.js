/*
 * Markdown as the tokens of markdown-it 15.0.3 (markdown-it.js, as npm has it; licences beside it).
 *
 * No block changes by what is written after the next one has begun, so that an answer can be shown
 * while it comes (render.js): reference links and setext headings are left out, and so is HTML.
 * Formulas stay as they are typed, `<br>` is a line break, and what is nested deeper than MAX_LEVEL
 * is a paragraph. Time is linear in the length of the text.
 */

import MarkdownIt from "./markdown-it.js";

const MAX_LEVEL = 24; // a quote is one level, a list two
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const FORMULAS = [["$$", "$$"], ["\\[", "\\]"], ["\\(", "\\)"], ["$", "$"]];
const LINE_BREAK = /<br ?\/?>/iy;

const parser = new MarkdownIt({ breaks: true, linkify: true }).disable(["reference", "lheading"]);
parser.validateLink = (href) => address(href) !== null;
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
for (const scheme of ["ftp:", "//", "mailto:"]) parser.linkify.add(scheme, null);
parser.block.ruler.before("fence", "formula", formulaBlock);
parser.inline.ruler.before("escape", "formula", formula);
parser.inline.ruler.before("autolink", "line_break", lineBreak);
const tokenize = parser.block.tokenize;
parser.block.tokenize = function (state, start, end, ...rest) {
  if (state.level < MAX_LEVEL) tokenize.call(this, state, start, end, ...rest);
  else deepest(state, start, end);
};

/** The tokens of *text*. */
export function parse(text) {
  return parser.parse(text, {});
}

/** The words of one paragraph, without markup. */
export function plain(text) {
  return words(parser.parseInline(text, {})[0].children);
}

/** *href* if it is one that may be followed. */
export function address(href) {
  try {
    const url = new URL(href);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function words(tokens) {
  return tokens.map((token) => {
    if (token.type === "softbreak" || token.type === "hardbreak") return " ";
    return token.children ? words(token.children) : token.content;
  }).join("");
}

/** Lines of a formula up to its end; without one, they are a paragraph. */
function formulaBlock(state, start, end, silent) {
  const begin = state.bMarks[start] + state.tShift[start];
  const pair = FORMULAS.slice(0, 2).find(([opening]) => state.src.startsWith(opening, begin));
  if (!pair || silent) return false;
  const [opening, closing] = pair;
  let from = begin + opening.length, line = start;
  for (; line < end && !state.isEmpty(line) && state.sCount[line] >= state.blkIndent; line += 1) {
    const text = state.src.slice(from, state.eMarks[line]);
    const place = text.indexOf(closing);
    if (place >= 0 && !text.slice(place + closing.length).trim()) {
      const token = state.push("formula_block", "p", 0);
      token.content = state.getLines(start, line + 1, state.blkIndent, false).trim();
      token.map = [start, state.line = line + 1];
      return true;
    }
    from = state.eMarks[line] + 1;
  }
  paragraph(state, start, line);
  return true;
}

function deepest(state, start, end) {
  let line = start;
  while (line < end && (state.isEmpty(line) || state.sCount[line] >= state.blkIndent)) line += 1;
  paragraph(state, start, line);
}

function paragraph(state, start, end) {
  const lines = [start, state.line = end];
  state.push("paragraph_open", "p", 1).map = lines;
  const token = state.push("inline", "", 0);
  token.content = state.getLines(start, end, state.blkIndent, false).trim();
  token.map = lines;
  token.children = [];
  state.push("paragraph_close", "p", -1);
}

function formula(state, silent) {
  const { src, pos, posMax } = state;
  const pair = FORMULAS.find(([opening]) => src.startsWith(opening, pos));
  if (!pair) return false;
  const [opening, closing] = pair;
  const place = next(state, closing, pos + opening.length);
  const end = place + closing.length;
  if (place < 0 || end > posMax) return false;
  if (opening === "$") { // prices are not formulas
    const inside = src.slice(pos + 1, place);
    if (!inside || /^\s|\s$|\n/.test(inside) || /\d/.test(src[end] ?? "")) return false;
  }
  if (!silent) state.push("formula_inline", "span", 0).content = src.slice(pos, end);
  state.pos = end;
  return true;
}

/** Where the first *mark* from *start* on is, or -1; its places are looked for once. */
function next(state, mark, start) {
  state.places ??= new Map();
  if (!state.places.has(mark)) {
    const found = [];
    for (let at = state.src.indexOf(mark); at >= 0; at = state.src.indexOf(mark, at + 1)) found.push(at);
    state.places.set(mark, found);
  }
  const places = state.places.get(mark);
  let low = 0, high = places.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (places[middle] < start) low = middle + 1;
    else high = middle;
  }
  return places[low] ?? -1;
}

function lineBreak(state, silent) {
  LINE_BREAK.lastIndex = state.pos;
  const found = LINE_BREAK.exec(state.src);
  if (!found) return false;
  if (!silent) state.push("hardbreak", "br", 0);
  state.pos += found[0].length;
  return true;
}
