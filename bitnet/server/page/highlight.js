/*
 * Colours for code. A language is one pattern of alternatives that each take what they match to its
 * end, so time is linear; what no alternative takes stays plain.
 */

import { make } from "./dom.js";

const LIMIT = 100_000; // characters that get colours

const STRING = String.raw`"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|'[^'\\\n]*(?:\\.[^'\\\n]*)*'?`;
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[a-zA-Z]{0,3}\b`;
const C_COMMENT = String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
const HASH_COMMENT = String.raw`#[^\n]*`;
const C_WORDS = "auto bool break case catch char class const constexpr continue default delete do double else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept nullptr operator private protected public return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while";
const WORDS = {
  c: C_WORDS,
  go: "break case chan const continue default defer else fallthrough for func go goto if import interface map nil package range return select struct switch type var true false",
  java: "abstract boolean break byte case catch char class const continue default do double else enum extends final finally float for if implements import instanceof int interface long native new null package private protected public record return short static super switch synchronized this throw throws try var void volatile while true false override internal string using namespace foreach in out async await fun val when object",
  js: "as async await break case catch class const continue default delete do else enum export extends false finally for from function get if implements import in instanceof interface let new null of private protected public readonly return set static super switch this throw true try type typeof undefined var void while yield",
  json: "true false null",
  python: "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return self try while with yield",
  rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
  shell: "if then else elif fi for while until do done case esac in function return local export set unset shift exit echo cd source true false",
  sql: "select from where insert into values update set delete create table alter drop index view join left right inner outer full on as and or not null is in like between group by order having limit offset union all distinct primary key foreign references default case when then else end exists begin commit rollback with",
  yaml: "true false null yes no on off",
};
const ALIASES = {
  "c++": "c", bash: "shell", cc: "c", console: "shell", cpp: "c", cs: "java", csharp: "java", cuda: "c",
  golang: "go", h: "c", hpp: "c", htm: "html", javascript: "js", jsx: "js", kotlin: "java", mysql: "sql",
  postgresql: "sql", py: "python", python3: "python", rs: "rust", sh: "shell", sqlite: "sql", svg: "html",
  toml: "yaml", ts: "js", tsx: "js", typescript: "js", xml: "html", yml: "yaml", zsh: "shell",
};
const COMMENTS = { json: null, python: HASH_COMMENT, shell: HASH_COMMENT, sql: String.raw`--[^\n]*|\/\*[^]*?(?:\*\/|$)`, yaml: HASH_COMMENT };
const STRINGS = {
  go: "`[^`]*`?|" + STRING,
  js: "`[^`\\\\]*(?:\\\\[^][^`\\\\]*)*`?|" + STRING,
  python: String.raw`[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${STRING})`,
  rust: String.raw`"[^"\\]*(?:\\[^][^"\\]*)*"?`,
};
const HTML = [["comment", "<!--[^]*?(?:-->|$)"], ["string", STRING], ["keyword", String.raw`<\/?[\w:-]+|\/?>`]];
const CSS = [["comment", String.raw`\/\*[^]*?(?:\*\/|$)`], ["string", STRING], ["keyword", String.raw`@[\w-]+|[\w-]+(?=\s{0,9}:)`], ["number", String.raw`#[\da-fA-F]{3,8}\b|\b\d+(?:\.\d+)?(?:[a-z]{1,4}\b|%)?`]];

const grammars = new Map();

/** The text of *code* as nodes, coloured where *language* is known. */
export function highlighted(code, language) {
  const out = document.createDocumentFragment();
  const grammar = code.length > LIMIT ? null : grammarOf(language.toLowerCase());
  let end = 0;
  for (const match of grammar ? code.matchAll(grammar.pattern) : []) {
    const kind = kindOf(match, grammar);
    if (!kind) continue;
    out.append(code.slice(end, match.index), make("span", { class: kind }, match[0]));
    end = match.index + match[0].length;
  }
  out.append(code.slice(end));
  return out;
}

function grammarOf(given) {
  const name = Object.hasOwn(ALIASES, given) ? ALIASES[given] : given;
  if (!grammars.has(name)) grammars.set(name, grammarFor(name));
  return grammars.get(name);
}

function grammarFor(name) {
  if (name === "diff") return compiled([["added", "^\\+[^\\n]*"], ["removed", "^-[^\\n]*"], ["comment", "^@@[^\\n]*"]], "gm");
  if (name === "html") return compiled(HTML);
  if (name === "css" || name === "scss") return compiled(CSS);
  if (!Object.hasOwn(WORDS, name)) return null;
  const comment = name in COMMENTS ? COMMENTS[name] : C_COMMENT;
  const rows = [["string", STRINGS[name] ?? STRING], ["number", NUMBER], ["word", String.raw`[A-Za-z_]\w*`]];
  if (comment) rows.unshift(["comment", comment]);
  const fold = name === "sql";
  return { ...compiled(rows), fold, words: new Set(WORDS[name].split(" ")) };
}

/** One pattern with a named group for each kind; `$` is the end of the text unless *flags* have an m. */
function compiled(rows, flags = "g") {
  return { pattern: new RegExp(rows.map(([kind, pattern]) => `(?<${kind}>${pattern})`).join("|"), flags), kinds: rows.map(([kind]) => kind) };
}

function kindOf(match, grammar) {
  const kind = grammar.kinds.find((name) => match.groups[name] !== undefined);
  if (kind !== "word") return kind;
  const word = grammar.fold ? match[0].toLowerCase() : match[0];
  if (grammar.words.has(word)) return "keyword";
  return match.input[match.index + match[0].length] === "(" ? "call" : null;
}
