// Dark, light or as the system has it; runs before the page is drawn, so that nothing flashes.
(() => {
  const KEY = "nanoloop.theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const root = document.documentElement;
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  };
  const show = (theme) => {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    button?.setAttribute("aria-label", `Colours: ${theme}. Change`);
    button?.setAttribute("title", `Colours: ${theme}`);
  };
  show(stored() in NEXT ? stored() : "auto");
  document.addEventListener("DOMContentLoaded", () => {
    show(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", () => {
      show(NEXT[root.dataset.theme]);
      try {
        localStorage.setItem(KEY, root.dataset.theme);
      } catch {
        // It holds until the page is left.
      }
    });
  });
})();
