/** What this window keeps until it is closed, where the browser keeps such things at all. */

/** What was kept under a name; empty: nothing was. @param {string} name */
export function loadItem(name) {
  try {
    return sessionStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

/** Keeps a text. @param {string} name @param {string} text */
export function saveItem(name, text) {
  try {
    sessionStorage.setItem(name, text);
  } catch {
    // then this page alone has it, until it is left
  }
}
