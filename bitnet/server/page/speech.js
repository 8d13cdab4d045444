/*
 * Sentences of an answer for screen readers, in a live region beside the text that grows by tokens,
 * which is silent. Code is named and not read.
 */

import { make } from "./dom.js";
import { plain } from "./markdown.js";

const KEPT = 8; // sentences in the region, so that it stays small
const SENTENCE_END = /[.!?:;…]["')\]*_`»”]{0,3}(?=\s)|[。！？]/g;
const FENCE = /^\s{0,9}(?:```|~~~)/;
const MARKUP = /^(?:\s{0,9}(?:[-*+>]|#{1,6})\s)+|^[|:\s-]{3,}$|\|/g;

export class Speech {
  /** Speak in *region*, an element with aria-live. */
  constructor(region) {
    this.region = region;
    this.begin();
  }

  /** Expect a new answer, or more of one whose *text* was said before. */
  begin(text = "") {
    this.spoken = text.length; // characters of the answer that have been taken
    this.inCode = text.split("\n").filter((line) => FENCE.test(line)).length % 2 === 1;
  }

  /** Say the sentences of *text* that are complete, and all of it if it has *ended*. */
  update(text, ended = false) {
    for (;;) {
      const line = text.indexOf("\n", this.spoken);
      const end = line < 0 ? text.length : line;
      const isLine = line >= 0 || ended;
      const part = text.slice(this.spoken, end);
      if (!isLine && (this.inCode || /^\s{0,9}[`~]/.test(part))) return;
      if (isLine && FENCE.test(part)) {
        if (!this.inCode) this.say("Code.");
        this.inCode = !this.inCode;
      } else if (!this.inCode) {
        const cut = isLine ? part.length : lastEnd(part);
        this.say(part.slice(0, cut));
        if (!isLine) {
          this.spoken += cut;
          return;
        }
      }
      this.spoken = end + 1;
      if (line < 0) return;
    }
  }

  /** Say *text* now. */
  say(text) {
    const words = plain(text.replace(MARKUP, " ")).trim();
    if (!words) return;
    this.region.append(make("p", {}, words));
    while (this.region.childElementCount > KEPT) this.region.firstElementChild.remove();
  }
}

function lastEnd(text) {
  let end = 0;
  for (const match of text.matchAll(SENTENCE_END)) end = match.index + match[0].length;
  return end;
}
