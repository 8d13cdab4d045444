/*
 * Markdown as a tree of blocks. Each has a type and the number of its first line:
 *
 *   {type: "paragraph" | "heading", level, text}      text: what inline.js reads
 *   {type: "code", language, text, closed}
 *   {type: "math", text}                              a formula, as it was typed
 *   {type: "quote", blocks}
 *   {type: "list", ordered, start, loose, items: [{checked, blocks}]}
 *   {type: "table", align, head, rows}                cells are texts
 *   {type: "rule"}
 *
 * Time is linear in the length of the text; what is nested deeper than MAX_DEPTH is a paragraph.
 * No block changes by what is written after the next one has begun, so that an answer can be shown
 * while it comes (render.js). Left out: HTML, reference links, setext headings, lazy quotes.
 */

const MAX_DEPTH = 12;
const MAX_COLUMNS = 64;
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const QUOTE = /^ {0,3}> ?/;
const BULLET = /^( *)([-*+])(?:( +)|\t|$)/;
const NUMBER = /^( *)(\d{1,9})([.)])(?:( +)|\t|$)/;
const INDENTED = /^(?: {4}| {0,3}\t)/;
const FORMULA = /^ {0,3}(\$\$|\\\[)/;
const TASK = /^\[([ xX])\] /;

/** The blocks of *text*. */
export function parse(text) {
  return blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, after] = next(lines, at, depth);
    found.push({ ...block, line: at });
    at = after;
  }
  return found;
}

/** The block that begins in line *at*, and the line after it. */
function next(lines, at, depth) {
  const line = lines[at];
  if (depth < MAX_DEPTH) {
    if (isRule(line)) return [{ type: "rule" }, at + 1];
    if (QUOTE.test(line)) return quote(lines, at, depth);
    const mark = marker(line);
    if (mark && mark.indent < 4) return list(lines, at, mark, depth);
  }
  if (INDENTED.test(line)) return indented(lines, at);
  if (isFence(line)) return fenced(lines, at);
  if (HEADING.test(line)) return heading(line, at);
  if (FORMULA.test(line)) return formula(lines, at);
  const align = alignment(lines, at);
  return align ? table(lines, at, align) : paragraph(lines, at, depth);
}

function isRule(line) {
  const bare = line.trim().replace(/[ \t]+/g, "");
  return bare.length > 2 && "-*_".includes(bare[0]) && !/^\t| {4}/.test(line.slice(0, 4)) && all(bare, bare[0]);
}

function all(text, character) {
  for (let at = 0; at < text.length; at += 1) if (text[at] !== character) return false;
  return true;
}

function isFence(line) {
  const fence = FENCE.exec(line);
  return fence !== null && (fence[1][0] === "~" || !line.slice(fence[0].length).includes("`"));
}

function fenced(lines, at) {
  const fence = FENCE.exec(lines[at]);
  const [opening, run] = fence;
  const indent = opening.length - run.length;
  let end = at + 1;
  while (end < lines.length) {
    const closing = FENCE.exec(lines[end]);
    const rest = closing && lines[end].slice(closing[0].length).trim();
    if (closing && !rest && closing[1][0] === run[0] && closing[1].length >= run.length) break;
    end += 1;
  }
  const text = lines.slice(at + 1, end).map((line) => without(line, indent)).join("\n");
  const language = lines[at].slice(opening.length).trim().split(/\s/, 1)[0].slice(0, 40);
  return [{ type: "code", language, text, closed: end < lines.length }, end + 1];
}

function indented(lines, at) {
  let end = at, last = at;
  for (; end < lines.length && (INDENTED.test(lines[end]) || !lines[end].trim()); end += 1) {
    if (lines[end].trim()) last = end;
  }
  const text = lines.slice(at, last + 1).map((line) => line.replace(INDENTED, "")).join("\n");
  return [{ type: "code", language: "", text, closed: true }, end];
}

function heading(line, at) {
  const [opening, marks] = HEADING.exec(line);
  let text = line.slice(opening.length).trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  if (end === 0 || /[ \t]/.test(text[end - 1])) text = text.slice(0, end).trim();
  return [{ type: "heading", level: marks.length, text }, at + 1];
}

/** Lines of a formula up to its end; without one, they are a paragraph. */
function formula(lines, at) {
  const begin = FORMULA.exec(lines[at]);
  const close = begin[1] === "$$" ? "$$" : "\\]";
  let end = at, from = begin[0].length;
  for (; end < lines.length && lines[end].trim(); end += 1, from = 0) {
    const place = lines[end].indexOf(close, from);
    if (place < 0) continue;
    if (lines[end].slice(place + close.length).trim()) break; // text after it
    return [{ type: "math", text: lines.slice(at, end + 1).join("\n").trim() }, end + 1];
  }
  while (end < lines.length && lines[end].trim()) end += 1;
  return [{ type: "paragraph", text: stripped(lines.slice(at, end)) }, end];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inside = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "quote", blocks: blocks(inside, depth + 1) }, end];
}

/** The marker a line of a list begins with: where, of which kind of list, and how wide. */
function marker(line) {
  const bullet = BULLET.exec(line);
  const number = bullet ? null : NUMBER.exec(line);
  if (!bullet && !number) return null;
  const [whole, before] = bullet ?? number;
  const spaces = bullet ? bullet[3] : number[4];
  const isEmpty = whole.length === line.length;
  const sign = bullet ? 1 : number[2].length + 1;
  const gap = !isEmpty && spaces && spaces.length < 5 ? spaces.length : 1;
  return {
    indent: before.length,
    kind: bullet ? bullet[2] : number[3],
    start: number ? Number(number[2]) : null,
    width: before.length + sign + gap,
    isEmpty,
  };
}

function list(lines, at, first, depth) {
  const items = [];
  let loose = false, blank = false, mark = first, end = at;
  while (end < lines.length) {
    const inside = [lines[end].slice(mark.width)];
    end += 1;
    blank = false;
    for (; end < lines.length; end += 1) {
      const line = lines[end];
      if (!line.trim()) {
        inside.push("");
        blank = true;
        continue;
      }
      const indent = /^ */.exec(line)[0].length;
      const nested = marker(line);
      const belongs = line[0] === "\t" || indent >= mark.width || (nested && indent >= first.indent + 2);
      if (!belongs && (blank || nested || begins(lines, end))) break;
      loose ||= blank && indent >= mark.width && !nested;
      inside.push(belongs ? without(line, mark.width) : line.trimStart());
      blank = false;
    }
    const task = TASK.exec(inside[0]);
    if (task) inside[0] = inside[0].slice(task[0].length);
    items.push({ checked: task ? task[1] !== " " : null, blocks: blocks(inside, depth + 1) });
    const following = end < lines.length ? marker(lines[end]) : null;
    if (!following || following.kind !== first.kind || following.indent > first.indent + 1 || isRule(lines[end])) break;
    loose ||= blank;
    mark = following;
  }
  return [{ type: "list", ordered: first.start !== null, start: first.start, loose, items }, end];
}

/** Whether line *at* begins another block than the paragraph before it. */
function begins(lines, at) {
  const line = lines[at];
  if (isRule(line) || QUOTE.test(line) || isFence(line) || HEADING.test(line)) return true;
  const mark = marker(line);
  if (mark && mark.indent < 4 && !mark.isEmpty && (mark.start ?? 1) === 1) return true;
  return alignment(lines, at) !== null;
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && (depth >= MAX_DEPTH || !begins(lines, end))) end += 1;
  return [{ type: "paragraph", text: stripped(lines.slice(at, end)) }, end];
}

function stripped(lines) {
  return lines.map((line) => line.trimStart()).join("\n").trimEnd();
}

/** *line* without up to *count* spaces, or one tab, at its beginning. */
function without(line, count) {
  if (line[0] === "\t") return line.slice(1);
  let at = 0;
  while (at < count && line[at] === " ") at += 1;
  return line.slice(at);
}

/** How the columns of the table that begins in line *at* are aligned; null: there is no table. */
function alignment(lines, at) {
  const under = lines[at + 1];
  if (under === undefined || !lines[at].includes("|") || !/^[ \t]*[|:-][-|: \t]*$/.test(under)) return null;
  const marks = cells(under);
  if (!marks.every((mark) => /^:?-+:?$/.test(mark)) || marks.length > MAX_COLUMNS) return null;
  if (cells(lines[at]).length !== marks.length) return null;
  return marks.map((mark) => {
    if (mark.at(-1) !== ":") return mark[0] === ":" ? "left" : "";
    return mark[0] === ":" ? "center" : "right";
  });
}

function table(lines, at, align) {
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && !/^ {0,3}(?:>|#{1,6} |```)/.test(lines[end])) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => cells(line).slice(0, align.length));
  return [{ type: "table", align, head: cells(lines[at]), rows }, end];
}

/** The cells of a row; "\|" is no border. */
function cells(line) {
  let text = line.trim();
  if (text[0] === "|") text = text.slice(1);
  if (text.at(-1) === "|" && text.at(-2) !== "\\") text = text.slice(0, -1);
  const found = [];
  let start = 0;
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === "|") {
      found.push(text.slice(start, at));
      start = at + 1;
    }
  }
  found.push(text.slice(start));
  return found.map((cell) => cell.trim().replaceAll("\\|", "|"));
}
