// Light or dark: what the system says, until somebody says otherwise.
// No module, so that it runs before anything is drawn.
(() => {
  const NAME = "regard-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");

  /** What was chosen here before, if anything was and may be kept. */
  function chosen() {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null;
    }
  }

  /** Keeps a choice, where that is allowed. @param {string} theme */
  function keep(theme) {
    try {
      localStorage.setItem(NAME, theme);
    } catch {
      // then it holds for this page alone
    }
  }

  /** Whether it is dark now. */
  function isDark() {
    const theme = document.documentElement.dataset.theme;
    return theme ? theme === "dark" : system.matches;
  }

  const before = chosen();
  if (before) document.documentElement.dataset.theme = before;

  addEventListener("DOMContentLoaded", () => {
    const button = /** @type {HTMLElement} */ (document.getElementById("theme"));
    const showState = () => button.setAttribute("aria-checked", String(isDark()));
    button.addEventListener("click", () => {
      const theme = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = theme;
      keep(theme);
      showState();
    });
    system.addEventListener("change", showState);
    showState();
  });
})();
