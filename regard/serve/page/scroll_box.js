/** A box that scrolls by itself, and shows on which sides there is more. */

import { make } from "./dom.js";

/**
 * @param {HTMLElement} content
 * @param {import("./dom.js").Attributes} [attributes] of the box
 */
export function makeScrollBox(content, attributes = {}) {
  const box = make("div", { class: "scroll", ...attributes }, content);
  const frame = make("div", { class: "frame" }, box);
  const markSides = () => {
    const [right, below] = [box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight];
    const left = box.scrollLeft + (getComputedStyle(box).direction === "rtl" ? right : 0);
    frame.classList.toggle("more-left", left > 1);
    frame.classList.toggle("more-right", left < right - 1);
    frame.classList.toggle("more-below", box.scrollTop < below - 1);
  };
  box.addEventListener("scroll", markSides, { passive: true });
  const sizes = new ResizeObserver(markSides);
  sizes.observe(box);
  sizes.observe(content);
  return frame;
}
