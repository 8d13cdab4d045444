/* The list of conversations: open, search, rename, export, delete. */

import { at, download, focusIfNothingIs, make } from "./dom.js";
import { asJSON, asMarkdown, fromJSON, matches, title } from "./tree.js";

const MENU_HEIGHT = 200; // pixels, with four items of a phone's size

export class History {
  /**
   * @param {object} store of store.js
   * @param {object} told open(id), searched(), now(id), removed(id), removedAll(), renamed(id, name), problem(text)
   */
  constructor(store, told) {
    this.store = store;
    this.told = told;
    this.current = null; // id
    this.turn = 0;
    this.isRenaming = false; // a row has a field with text that is not kept yet
    at("search").oninput = () => {
      this.show();
      told.searched();
    };
    at("import").onchange = (event) => this.take(event.target);
    at("delete-all").onclick = () => this.removeAll();
  }

  /** Show what the store has; *current* is the id of the conversation that is open. */
  async show(current = this.current) {
    this.current = current;
    this.turn += 1;
    const turn = this.turn;
    let all;
    try {
      all = await this.store.all();
    } catch (error) {
      this.told.problem(`This browser does not give the conversations: ${error.message}`);
      return;
    }
    if (turn !== this.turn || this.isRenaming) return; // a later call is on its way, or comes with the new name
    const query = at("search").value.trim();
    const found = query ? all.filter((one) => matches(one, query)) : all;
    const focused = document.activeElement?.dataset?.focus;
    at("conversations").replaceChildren(...found.map((one) => this.row(one)));
    if (focused) at("conversations").querySelector(`[data-focus="${focused}"]`)?.focus();
    at("found").textContent = query ? `${found.length} of ${all.length} found` : "";
  }

  row(conversation) {
    const name = title(conversation);
    const isOpen = conversation.id === this.current;
    const open = make("button", {
      type: "button", class: "open", title: name, "aria-current": isOpen ? "true" : null, "data-focus": conversation.id,
      onclick: () => {
        this.told.open(conversation.id);
        this.close();
      },
    }, name);
    const row = make("li", {}, open);
    row.append(...this.menu(conversation, name, row));
    return row;
  }

  /** The button at the end of a row, and the menu that it opens. */
  menu(conversation, name, row) {
    const menu = make("div", { id: `menu-${conversation.id}`, class: "menu", popover: "auto" });
    const item = (text, label, onclick) => make("button", {
      type: "button", class: "plain", "aria-label": `${label}: ${name}`,
      onclick: () => {
        menu.hidePopover();
        onclick();
      },
    }, text);
    menu.append(
      item("Rename", "Rename", () => this.rename(conversation, row)),
      item("Export as Markdown", "Markdown", () => this.save(conversation, "md", asMarkdown, "text/markdown")),
      item("Export as JSON", "JSON", () => this.save(conversation, "json", asJSON, "application/json")),
      item("Delete", "Delete", () => this.remove(conversation)),
    );
    const more = make("button", {
      type: "button", class: "plain more", popovertarget: menu.id, title: "Rename, export, delete",
      "aria-label": `Actions: ${name}`, "data-focus": `${conversation.id}-actions`,
    }, "⋯");
    menu.onbeforetoggle = (event) => { if (event.newState === "open") placeBeside(menu, more); };
    return [more, menu];
  }

  /** Save *conversation* as it is now, also while it is being answered. */
  async save(conversation, ending, written, type) {
    await this.tried("give", async () => {
      const one = await this.told.now(conversation.id) ?? conversation;
      download(fileName(title(one), ending), written(one), type);
    });
  }

  rename(conversation, row) {
    const field = make("input", { "aria-label": "New name", maxlength: "200" });
    field.value = title(conversation);
    let isOver = false;
    const end = async (keep) => {
      if (isOver) return;
      isOver = true;
      this.isRenaming = false;
      if (keep) await this.tried("rename", () => this.told.renamed(conversation.id, field.value.trim()));
      await this.show();
      focusIfNothingIs(at("conversations").querySelector("[aria-current]"));
    };
    field.onblur = () => end(true);
    field.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
    };
    row.replaceChildren(field);
    this.isRenaming = true;
    field.select();
    field.focus();
  }

  async remove(conversation) {
    let gone = conversation; // what the row has of it, if it was deleted before
    if (!await this.tried("delete", async () => { gone = await this.told.removed(conversation.id) ?? gone; })) return;
    const undo = make("button", {
      type: "button", class: "plain",
      onclick: async () => {
        if (!await this.tried("keep", () => this.store.put(gone))) return;
        at("gone").replaceChildren();
        this.told.open(gone.id);
      },
    }, "Undo");
    at("gone").replaceChildren(`Deleted: ${title(gone)} `, undo);
    focusIfNothingIs(undo);
  }

  async removeAll() {
    if (!confirm("Delete all conversations in this browser? There is no way back.")) return;
    at("gone").replaceChildren();
    await this.tried("delete", () => this.told.removedAll());
  }

  /** Await *work* on the store; false where it failed, and then it is said that the browser does not do *what*. */
  async tried(what, work) {
    try {
      await work();
      return true;
    } catch (error) {
      this.told.problem(`This browser does not ${what} conversations: ${error.message}`);
      return false;
    }
  }

  async take(field) {
    const [file] = field.files;
    field.value = "";
    try {
      const conversation = fromJSON(await file.text());
      await this.store.put(conversation);
      this.told.open(conversation.id);
      this.close();
    } catch (error) {
      this.told.problem(error.message);
    }
  }

  /** On a phone the list covers the page. */
  close() {
    if (at("history").matches(":popover-open")) at("history").hidePopover();
  }
}

/** Put *menu* below *button*, or above it near the end of the page. */
function placeBeside(menu, button) {
  const box = button.getBoundingClientRect();
  const isBelow = box.bottom + MENU_HEIGHT < innerHeight;
  menu.style.left = `${box.left}px`;
  menu.style.top = isBelow ? `${box.bottom}px` : "auto";
  menu.style.bottom = isBelow ? "auto" : `${innerHeight - box.top}px`;
}

function fileName(name, ending) {
  return `${name.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || "conversation"}.${ending}`;
}
