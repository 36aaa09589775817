/* What a link points to is shown, what is printed is open, and the arrow keys turn pages. */
(() => {
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    let opened = false;
    for (let at = target; at; at = at.parentElement) {
      if (at.tagName === "DETAILS" && !at.open) opened = at.open = true;
    }
    if (opened) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  addEventListener("load", reveal);

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll(".bd-article details.kl-fold:not([open])")];
    closed.forEach((e) => { e.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((e) => { e.open = false; }));

  /* Only while nothing has the focus: arrows scroll a wide table, move a slider, walk through text. */
  addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.defaultPrevented) return;
    if (document.activeElement && document.activeElement !== document.body) return;
    const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
    const page = rel && document.querySelector(`link[rel="${rel}"]`);
    if (page) location.href = page.href;
  });

  /* A slash looks for something, as in many readers; the theme itself knows Ctrl+K. */
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.altKey || event.ctrlKey || event.metaKey) return;
    if (document.activeElement && document.activeElement.matches("input, textarea, select, [contenteditable]")) return;
    const field = [...document.querySelectorAll("input[name=q]")].find((e) => e.checkVisibility());
    const button = [...document.querySelectorAll(".search-button-field, .search-button")].find((e) => e.checkVisibility());
    if (!field && !button) return;
    event.preventDefault();
    if (field) field.focus();
    else button.click();
  });

  /* The copy buttons come late, from another script, all at once, and without a name of their own. */
  const watching = new MutationObserver(() => {
    const buttons = document.querySelectorAll(".copybtn");
    if (buttons.length) watching.disconnect();
    buttons.forEach((button) => {
      button.setAttribute("aria-label", "Copy this code");
      button.type = "button";
    });
  });
  watching.observe(document.documentElement, { childList: true, subtree: true });
  addEventListener("load", () => setTimeout(() => watching.disconnect(), 5000));
})();
