// The colours follow the system until the button #theme is pressed; "themechange" tells who draws with them.
(function () {
  "use strict";
  const preference = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null;

  function dark() {
    return chosen === null ? preference.matches : chosen === "dark";
  }

  function themeChanged() {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", dark() ? "Use the light colours" : "Use the dark colours");
    document.dispatchEvent(new Event("themechange"));
  }

  window.evenkeelTheme = { dark };
  button.hidden = false;
  button.addEventListener("click", () => {
    chosen = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    themeChanged();
  });
  preference.addEventListener("change", themeChanged);
  themeChanged();
})();
