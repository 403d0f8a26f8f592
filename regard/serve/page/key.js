/** The API key, kept until the window is closed. */

const NAME = "regard-key";
let held = stored();

/** The key of this session, if the browser keeps such things. */
function stored() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

/** The key; empty where there is none. */
export const key = () => held;

/**
 * Takes another key.
 * @param {string} value
 */
export function setKey(value) {
  held = value.trim();
  try {
    sessionStorage.setItem(NAME, held);
  } catch {
    // then it is held by this page alone
  }
}
