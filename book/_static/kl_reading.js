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

  /* The copy buttons come late, from another script, and without a name of their own. */
  const name = () => document.querySelectorAll(".copybtn:not([aria-label])").forEach((button) => {
    button.setAttribute("aria-label", "Copy this code");
    button.type = "button";
  });
  new MutationObserver(name).observe(document.documentElement, { childList: true, subtree: true });
})();
