// What the npm package `translate` makes of the service: a translation, and an error.
import { Translate } from "translate";

const [url, text] = process.argv.slice(2);
const translate = Translate({ engine: "libre", url });
const translated = await translate(text, { from: "en", to: "de" });
const error = await translate(text, { from: "en", to: "fr" }).catch((reason) => reason.message);
console.log(JSON.stringify({ translated, error }));
