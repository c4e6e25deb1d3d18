// Runs before the page is drawn, so that it never flashes in the other colours. "system" follows the system.

(function () {
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try {
      return localStorage.getItem("ottla-theme") || "system";
    } catch {
      return "system"; // a browser that keeps nothing
    }
  }

  function apply() {
    const theme = stored();
    const isDark = theme === "dark" || (theme === "system" && dark.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  }

  window.ottlaTheme = {
    current: stored,
    set(theme) {
      try {
        localStorage.setItem("ottla-theme", theme);
      } finally {
        apply();
      }
    },
  };
  dark.addEventListener("change", apply);
  apply();
})();
