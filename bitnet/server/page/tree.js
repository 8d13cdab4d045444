/*
 * A conversation is a tree: an edited question or another answer stands beside the first one, and
 * nothing is lost. What is shown is the path from the root to `leaf`.
 *
 *   {id, name, created, updated, system, next, leaf, nodes: [{id, parent, role, content, ...}]}
 *
 * A question may have files, {name, text}. An answer also has model, tokens, seconds, and `end`: why it ended ("" while it is written).
 */

const ROLES = ["user", "assistant"];

/** An empty conversation with the system prompt *system*. */
export function create(system) {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const now = Date.now();
  return { id, name: "", created: now, updated: now, system, next: 1, leaf: null, nodes: [] };
}

/** A new node after the one with id *parent*; it is shown from now on. */
export function add(conversation, parent, fields) {
  const node = { ...fields, id: conversation.next, parent };
  conversation.next += 1;
  conversation.nodes.push(node);
  conversation.leaf = node.id;
  conversation.updated = Date.now();
  return node;
}

/** Take *node*, which has nothing after it, away; *leaf* is shown from now on. */
export function remove(conversation, node, leaf) {
  conversation.nodes = conversation.nodes.filter((one) => one !== node);
  conversation.leaf = leaf;
}

/** The nodes that are shown, from the first; each once, also where damaged data has them follow each other in a circle. */
export function path(conversation) {
  const byId = new Map(conversation.nodes.map((node) => [node.id, node]));
  const found = [];
  for (let node = byId.get(conversation.leaf); node; node = byId.get(node.parent)) {
    found.unshift(node);
    byId.delete(node.id);
  }
  return found;
}

/** *node* and what stands beside it. */
export function versions(conversation, node) {
  return conversation.nodes.filter((one) => one.parent === node.parent && one.role === node.role);
}

/**
 * Show the path through *node* that was written last.
 *
 * @throws {Error} it is a message of another conversation, or was taken away
 */
export function select(conversation, node) {
  if (!conversation.nodes.includes(node)) throw new Error(`Message ${node.id} is not in this conversation`);
  const latest = new Map();
  for (const one of conversation.nodes) latest.set(one.parent, one.id);
  let leaf = node.id;
  while (latest.has(leaf)) {
    const parent = leaf;
    leaf = latest.get(parent);
    latest.delete(parent); // ends a circle, see path()
  }
  conversation.leaf = leaf;
}

/** The messages that are sent for an answer to *node*. */
export function messages(conversation, node) {
  const shown = path({ ...conversation, leaf: node.id });
  const system = conversation.system.trim();
  const first = system ? [{ role: "system", content: system }] : [];
  return [...first, ...shown.map((one) => ({ role: one.role, content: whole(one) }))];
}

/** The text of a message with its files, each in a block of code that its backticks do not end. */
function whole({ content, files = [] }) {
  const blocks = files.map(({ name, text }) => {
    const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...blocks, content].filter(Boolean).join("\n\n");
}

/** The name it was given, or its first question without the signs of Markdown. */
export function title(conversation) {
  const first = conversation.nodes.find((node) => node.role === "user");
  const line = first ? plain(first.content.trim().split("\n", 1)[0]) : "";
  return conversation.name || line.slice(0, 80) || first?.files?.[0].name || "New chat";
}

/** A line of Markdown as its reader sees it; a sign that stands for itself stays. */
function plain(line) {
  const text = line
    .replace(/^\s*(?:#{1,6}|>|[-*+]|\d+[.)])\s+/, "")
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/`+/g, "")
    .replace(/(\*\*|__|~~)(\S(?:.*?\S)?)\1/g, "$2")
    .replace(/(^|[\s(])([*_])([^\s*_](?:[^*_]*[^\s*_])?)\2(?=$|[\s).,;:!?])/g, "$1$3")
    .trim();
  return text || line;
}

/** Whether all words of *query* are in its name, its messages or their files. */
export function matches(conversation, query) {
  const text = [title(conversation), ...conversation.nodes.map(whole)].join("\n").toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** The path that is shown, as a document. */
export function asMarkdown(conversation) {
  const parts = [`# ${title(conversation)}`];
  if (conversation.system.trim()) parts.push(`**System prompt**\n\n${conversation.system.trim()}`);
  for (const node of path(conversation)) {
    const who = node.role === "user" ? "You" : node.model || "Model";
    parts.push(`## ${who}\n\n${whole(node)}`);
  }
  return parts.join("\n\n") + "\n";
}

/** All of it, for {@link fromJSON}. */
export function asJSON(conversation) {
  return JSON.stringify({ format: "bitnet-conversation", version: 1, conversation }, null, 1) + "\n";
}

/**
 * The conversation in *text*, with a new id.
 *
 * @throws {Error} it is not what asJSON wrote
 */
export function fromJSON(text) {
  let facts;
  try {
    facts = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON: expected a conversation that was exported here");
  }
  const given = facts?.conversation;
  if (facts?.format !== "bitnet-conversation" || facts.version !== 1 || !Array.isArray(given?.nodes)) {
    throw new Error("This file has no conversation that was exported here");
  }
  const made = create(String(given.system ?? ""));
  made.name = String(given.name ?? "");
  const ids = new Map([[null, null]]);
  for (const node of given.nodes) {
    if (!ROLES.includes(node?.role) || typeof node.content !== "string" || !ids.has(node.parent)) {
      throw new Error(`Message ${ids.size} of this file is not one: expected a role, a text and what it follows`);
    }
    const { role, content } = node;
    const files = (Array.isArray(node.files) ? node.files : []).map(({ name, text }) => ({ name: String(name), text: String(text) }));
    const fields = role === "user" ? { role, content, ...(files.length ? { files } : {}) } : {
      role, content, thought: String(node.thought ?? ""), model: String(node.model ?? ""), end: String(node.end || "stop"), detail: String(node.detail ?? ""),
    };
    ids.set(node.id, add(made, ids.get(node.parent), fields).id);
  }
  made.leaf = ids.get(given.leaf) ?? made.leaf;
  return made;
}
