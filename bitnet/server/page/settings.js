/* The drawer: how answers are drawn, the system prompt, the key of the worker. */

import { at } from "./dom.js";

const NAME = "bitnet.settings";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];

/** Numbers and the model outlive the page, the key this tab; the system prompt belongs to a conversation. */
export class Settings {
  /** @param {object} told onSystem(text), onKey() */
  constructor({ onSystem, onKey }) {
    const kept = read(NAME);
    this.model = typeof kept.model === "string" ? kept.model : ""; // that was picked last
    at("model").onchange = () => this.keep();
    for (const name of NUMBERS) {
      const field = at(name);
      if (typeof kept[name] === "string") field.value = kept[name];
      field.onchange = () => this.keep();
    }
    at("stops").value = typeof kept.stops === "string" ? kept.stops : "";
    at("stops").onchange = () => this.keep();
    at("key").value = sessionStorage.getItem("key") ?? "";
    at("key").onchange = () => {
      sessionStorage.setItem("key", this.key);
      onKey();
    };
    at("system").onchange = () => onSystem(at("system").value);
    at("defaults").onclick = () => {
      for (const name of [...NUMBERS, "stops"]) at(name).value = at(name).defaultValue;
      this.keep();
    };
  }

  get key() {
    return at("key").value;
  }

  /** The sampling fields of a request; one left empty is not sent, and the worker decides. */
  get sampling() {
    const given = {};
    for (const name of NUMBERS) if (at(name).value !== "") given[name] = at(name).valueAsNumber;
    const stop = at("stops").value.split("\n").filter((line) => line);
    return stop.length ? { ...given, stop } : given;
  }

  keep() {
    const values = Object.fromEntries([...NUMBERS, "stops"].map((name) => [name, at(name).value]));
    values.model = this.model = at("model").value || this.model;
    try {
      localStorage.setItem(NAME, JSON.stringify(values));
    } catch {
      // a browser that keeps nothing says so once, where conversations are kept
    }
  }

  /** Show the system prompt of the conversation that is open. */
  showSystem(text) {
    at("system").value = text;
  }
}

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? {};
  } catch {
    return {};
  }
}
