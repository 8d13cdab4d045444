/* The events of the page, and what follows from each. */

import { chat, models } from "./api.js";
import { Attachments } from "./attach.js";
import { at, focusIfNothingIs, make } from "./dom.js";
import { Find } from "./find.js";
import { History } from "./history.js";
import { cut, divided } from "./message.js";
import { Settings } from "./settings.js";
import { Speech } from "./speech.js";
import { open } from "./store.js";
import { Talk } from "./talk.js";
import { add, create, messages, path, remove, select, title } from "./tree.js";

const KEEP_EVERY_MS = 1000; // while an answer is written

const store = await open();
const speech = new Speech(at("speech"));
const settings = new Settings({ onSystem: setSystem, onKey: () => { problem(""); showModels(); } });
const talk = new Talk(at("talk"), { edit, regenerate, proceed, select: choose, draft });
const find = new Find(reveal);
const attachments = new Attachments(problem);
const list = new History(store, { open: openFound, searched: () => find.update(conversation), now, removed, removedAll, renamed, problem });
let conversation = create("");
let running = null; // {controller, conversation, node, over: a promise}
let opened = 0; // conversations so far
let isNew = true; // nothing of the conversation is kept yet

async function showModels() {
  const picker = at("model");
  const before = picker.value || settings.model;
  try {
    const found = await models(settings.key);
    picker.replaceChildren(...found.map((model) => make("option", { value: model.id }, model.id)));
    if (found.some((model) => model.id === before)) picker.value = before;
  } catch (error) {
    problem(error.code === "invalid_api_key" ? "This worker wants a key: Settings, Key." : error.message);
  }
}

/** Say what went wrong; nothing: say nothing any more. */
function problem(text) {
  at("problem").hidden = !text;
  at("problem").textContent = text;
}

function show() {
  at("title").textContent = title(conversation);
  document.title = `${title(conversation)} - bitnet`;
  talk.show(conversation, running?.node);
  find.update(conversation);
  settings.showSystem(conversation.system);
}

async function keep(one) {
  try {
    await store.put(one);
    if (one === conversation) {
      isNew = false;
      history.replaceState(null, "", `#${one.id}`);
    }
  } catch (error) {
    problem(`This browser does not keep the conversation: ${error.message}`);
    return;
  }
  await list.show(conversation.id);
}

/** Open the conversation *id*, or a new one where there is none. */
async function openConversation(id) {
  opened += 1;
  const turn = opened;
  let kept;
  try {
    kept = running?.conversation.id === id ? running.conversation : id ? await store.get(id) : undefined;
  } catch (error) {
    problem(`This browser does not give the conversation: ${error.message}`);
    show(); // what there was
    return;
  }
  if (turn !== opened) return; // another one was opened meanwhile
  const isOther = kept?.id !== conversation.id; // the same one comes again when another tab changes it
  conversation = kept ?? create(conversation.system);
  isNew = !kept;
  history.replaceState(null, "", kept ? `#${id}` : location.pathname);
  show();
  busy(Boolean(running));
  if (isOther) {
    problem(""); // that of another conversation
    talk.toEnd();
  }
  await list.show(conversation.id);
}

/** Open the conversation *id* at the first message that the search finds. */
async function openFound(id) {
  await openConversation(id);
  if (conversation.id === id) find.first(); // another one may have been opened meanwhile
}

async function startNew() {
  list.close();
  at("text").focus(); // at once: later, the person may be writing elsewhere
  await openConversation("");
}

/** The conversation *id* as it is now, which the store may not have yet; undefined: there is none. */
async function now(id) {
  const open = [conversation, running?.conversation].find((one) => one?.id === id);
  return open ?? (id ? await store.get(id) : undefined);
}

/** Delete the conversation *id*; gives it as it was, undefined if it was deleted before. */
async function removed(id) {
  if (running?.conversation.id === id) await stop();
  const gone = await store.get(id);
  await store.remove(id);
  if (id === conversation.id) await openConversation("");
  else await list.show(); // the open one stays as it is, with what is being edited
  return gone;
}

async function removedAll() {
  if (running) await stop();
  await store.clear();
  await openConversation("");
}

/** End the answer that is being written, and wait until what there is of it is kept. */
async function stop() {
  const { controller, over } = running;
  controller.abort();
  await over;
}

async function renamed(id, name) {
  const one = await now(id);
  if (!one) {
    problem("The conversation has no new name: it was deleted in another tab.");
    return;
  }
  one.name = name;
  await store.put(one);
  if (one === conversation) show();
}

async function setSystem(text) {
  conversation.system = text;
  if (!isNew) await keep(conversation);
}

async function send() {
  const text = at("text").value.trim();
  const { files } = attachments;
  if (!(text || files.length) || isAnswering()) return;
  setText("");
  attachments.set([]);
  const { leaf } = conversation;
  const asked = conversation;
  const node = add(asked, leaf, { role: "user", content: text, ...(files.length ? { files } : {}) });
  await answer(node, () => {
    remove(asked, node, leaf);
    if (!at("text").value) setText(text);
    if (!attachments.files.length) attachments.set(files);
  });
}

/** Stop the answer that is written in this conversation; another one's goes on. */
function stopShown() {
  if (running?.conversation === conversation) running.controller.abort();
}

/** True while an answer is written; where it is another conversation's, the person is told. */
function isAnswering() {
  if (running && running.conversation !== conversation) {
    problem("An answer is being written in another conversation: stop it there, or wait for it.");
  }
  return Boolean(running);
}

async function edit(before, text) {
  if (isAnswering()) return;
  const { leaf } = conversation;
  const asked = conversation;
  const node = add(asked, before.parent, { role: "user", content: text, ...(before.files ? { files: before.files } : {}) });
  await answer(node, () => {
    remove(asked, node, leaf);
    show();
    talk.edit(before, text);
  });
}

async function regenerate(before) {
  if (isAnswering()) return;
  await answer(conversation.nodes.find((node) => node.id === before.parent));
}

/** Have the answer *node*, which was cut off, written on. */
async function proceed(node) {
  if (isAnswering()) return;
  node.end = node.detail = "";
  await answer(conversation.nodes.find((one) => one.id === node.parent), undefined, node);
}

/** Show the message of *node*, which may belong to another version of the conversation. */
function reveal(node) {
  if (!path(conversation).includes(node)) {
    select(conversation, node);
    show();
  }
  return talk.elementOf(node);
}

async function choose(node) {
  select(conversation, node);
  show();
  await keep(conversation);
}

/**
 * Have *question* answered, or the answer *begun* written on.
 *
 * Where nothing came of it, the path before is shown again, and *undo* called if the conversation is still shown.
 */
async function answer(question, undo = () => {}, begun = null) {
  const asked = conversation;
  const { leaf } = asked;
  const model = at("model").value;
  const fields = { role: "assistant", content: "", thought: "", model, end: "", detail: "", tokens: 0, seconds: 0 };
  const node = begun ?? add(asked, question.id, fields);
  let end;
  const over = new Promise((resolve) => { end = resolve; });
  running = { controller: new AbortController(), conversation: asked, node, over };
  problem("");
  busy(true);
  show();
  if (begun) talk.progress(node); // show() does not draw a message again that it has
  talk.toEnd();
  speech.begin(begun ? divided(node.content).said ?? "" : "");
  const kept = keep(asked);
  await write(asked, question, node, running.controller.signal);
  await kept;
  running = null;
  const isShown = asked === conversation;
  const isNothing = !node.content && !node.thought && ["deadline", "error", "stopped"].includes(node.end);
  if (isNothing) {
    remove(asked, node, leaf);
    if (isShown) undo();
  }
  if (isShown) {
    talk.finish(node);
    show();
    speech.update(divided(node.content, true).said ?? "", true);
    if (!isNothing) speech.say(cut(node) || "End of the answer.");
  }
  if (isNothing && node.detail && isShown) problem(node.detail);
  busy(false);
  if (isShown) focusIfNothingIs(at("text"));
  if (asked.nodes.length) await keep(asked);
  else await forget(asked);
  end();
}

/** Fill *node* with what the worker writes, and say in it how that ended. */
async function write(asked, question, node, signal) {
  let first = 0, kept = performance.now();
  const { content, thought, model, tokens = 0, seconds = 0 } = node;
  try {
    const body = { model: node.model || undefined, messages: messages(asked, question), ...settings.sampling };
    if (content || thought) {
      body.messages.push({ role: "assistant", content, ...(thought ? { reasoning_content: thought } : {}) });
      body.continue_final_message = true;
    }
    for await (const part of chat(body, settings.key, signal)) {
      if (part.usage) node.tokens = tokens + part.usage.completion_tokens;
      if (part.end) node.end = part.end;
      if (part.model) node.model = part.model; // another one than the page asked
      if (!part.text && !part.thought) continue;
      const now = performance.now();
      first ||= now;
      node.content += part.text ?? "";
      node.thought = (node.thought ?? "") + (part.thought ?? "");
      node.tokens = (node.tokens ?? 0) + 1; // about; the exact number comes at the end
      node.seconds = seconds + (now - first) / 1000;
      if (asked === conversation) {
        talk.progress(node);
        speech.update(divided(node.content).said ?? "");
      }
      if (now - kept > KEEP_EVERY_MS) {
        kept = now;
        store.put(asked).catch(() => {}); // is tried again at the end, and said there
      }
    }
    if (!node.end) throw new Error("the stream had no end");
    if (node.model !== model) await showModels();
  } catch (error) {
    node.end = error.name === "AbortError" ? "stopped" : error.code === "deadline" ? "deadline" : "error";
    node.detail = node.end === "stopped" ? "" : error.message;
    if (error.code === "model_not_found") await showModels();
  }
}

/** Take a conversation away of which nothing is left. */
async function forget(one) {
  try {
    await store.remove(one.id);
  } catch (error) {
    problem(`This browser does not delete the conversation: ${error.message}`);
    return;
  }
  if (one === conversation) {
    isNew = true;
    history.replaceState(null, "", location.pathname);
  }
  await list.show(conversation.id);
}

/** Show that an answer is written; only the conversation that it belongs to can stop it. */
function busy(on) {
  const isHere = on && running?.conversation === conversation;
  document.body.toggleAttribute("data-busy", on);
  const hadFocus = [at("send"), at("stop")].includes(document.activeElement);
  at("send").hidden = isHere;
  at("stop").hidden = !isHere;
  if (hadFocus) at(isHere ? "stop" : "text").focus();
}

/** Put *text* into the box, to be changed or sent. */
function draft(text) {
  setText(text);
  at("text").focus();
}

function setText(text) {
  at("text").value = text;
  typed();
}

/** Let the box be as high as its text, and keep the text for a reload. */
function typed() {
  const box = at("text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + box.offsetHeight - box.clientHeight}px`;
  sessionStorage.setItem("draft", box.value);
}

at("form").onsubmit = (event) => {
  event.preventDefault();
  send();
};
at("text").oninput = typed;
at("text").onkeydown = (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !at("text").value && !running) {
    const last = path(conversation).findLast((node) => node.role === "user");
    if (!last) return;
    event.preventDefault();
    talk.edit(last);
  }
};
at("stop").onclick = stopShown;
at("new").onclick = startNew;
at("open-settings").onclick = () => at("settings").showModal();
at("close-settings").onclick = () => at("settings").close();
at("settings").onclick = (event) => { if (event.target === at("settings")) at("settings").close(); };
document.onkeydown = (event) => {
  const isCovered = at("settings").open || at("history").matches(":popover-open");
  if (event.key === "Escape" && !isCovered) stopShown();
};
window.onresize = typed;
window.onhashchange = () => openConversation(location.hash.slice(1));
store.watch(async (id) => {
  const isShown = id === conversation.id || id === ""; // "": all were deleted
  if (isShown && !running && !isNew) await openConversation(conversation.id);
  else await list.show();
});

setText(sessionStorage.getItem("draft") ?? "");
await openConversation(location.hash.slice(1));
await showModels();
if (!store.lasting) problem([at("problem").textContent, "This browser keeps nothing for this page: conversations end with it."].filter(Boolean).join("\n"));
document.body.dataset.ready = "true";
if (matchMedia("(min-width: 761px)").matches) focusIfNothingIs(at("text"));
