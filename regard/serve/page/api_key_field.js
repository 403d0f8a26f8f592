/** Where one says one's API key. */

import { byId, make } from "./dom.js";
import { apiKey, setApiKey } from "./api_key.js";

const KEPT = "Kept until this window is closed.";

export class ApiKeyField {
  /**
   * @param {{apiKeys: boolean, keyRequired: boolean, keyLink: string}} settings
   */
  constructor({ apiKeys, keyRequired, keyLink }) {
    this.required = apiKeys && keyRequired;
    /** Called when another key is being typed. */
    this.typed = () => {};
    /** Called when a key was given; with a button, or by leaving the field. @type {(at: "once" | "leisure") => void} */
    this.taken = () => {};
    const [form, field, status] = [byId("key-form"), byId("key"), byId("key-status")];
    form.hidden = !apiKeys;
    field.value = apiKey();
    status.replaceChildren(...how(keyLink));
    const take = (/** @type {"once" | "leisure"} */ at) => {
      setApiKey(field.value);
      status.replaceChildren(...(apiKey() ? [`${KEPT} `] : []), ...how(keyLink));
      this.taken(at);
    };
    field.addEventListener("input", () => this.typed());
    field.addEventListener("change", () => take("leisure"));
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      take("once");
    });
  }

  /** Why nothing is asked without a key; empty: it may be. */
  get missing() {
    return this.required && !apiKey() ? "This server asks for an API key: type it above and press “Use key”." : "";
  }
}

/** How one gets a key, where somebody says so. @param {string} link */
function how(link) {
  return /^https?:\/\//.test(link) ? [make("a", { href: link, target: "_blank", rel: "noopener" }, "Get a key")] : [];
}
