/**
 * An element; text becomes text nodes only, whatever it looks like.
 *
 * @param {string} kind name of the element
 * @param {object} attributes `onclick` and the like are listeners; false and null are left out
 * @param {...(Node|string)} children
 */
export function make(kind, attributes = {}, ...children) {
  const element = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const at = (id) => document.getElementById(id);

/**
 * Give *element*, if there is one, the focus after a wait.
 *
 * A person who has gone to another field meanwhile stays there.
 */
export function focusIfNothingIs(element) {
  if (document.activeElement === document.body) element?.focus();
}

/** Put *text* on the clipboard, also on a page that came over plain HTTP from another machine; it fails where the browser does not allow it. */
export async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const focused = document.activeElement;
  const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!isCopied) throw new Error("The browser does not allow to copy");
}

/** A button that copies what *text* gives, and says that it did until the pointer or focus leaves. */
export function copyButton(text, what) {
  const button = make("button", { type: "button", class: "plain", "aria-label": `Copy ${what}` }, "Copy");
  button.onclick = async () => {
    try {
      await copy(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
  };
  button.onblur = button.onpointerleave = () => { button.textContent = "Copy"; };
  return button;
}

/** Let the browser save *text* as a file. */
export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
