/* A formula in a line of text that is wider than the page gets a box of its own to scroll in. */
(() => {
  const fit = () => {
    for (const formula of document.querySelectorAll('.bd-article mjx-container:not([display="true"])')) {
      formula.classList.remove("kl-scroll");
      const line = formula.closest("p, li, td, th, dd, dt, figcaption, section") || document.body;
      if (formula.getBoundingClientRect().width > line.clientWidth) formula.classList.add("kl-scroll");
    }
  };
  const ready = () => (window.MathJax && MathJax.startup && MathJax.startup.promise
    ? MathJax.startup.promise.then(fit)
    : undefined);
  window.addEventListener("load", ready);
  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(fit);
  });
})();

/* The ledger: rows are shown and hidden by what the form says; a link to a row opens it. */
(() => {
  const start = () => {
    for (const ledger of document.querySelectorAll(".kl-ledger")) {
      const form = ledger.querySelector("form");
      const rows = [...ledger.querySelectorAll(".kl-row")];
      const count = ledger.querySelector(".kl-count");
      const failing = ["only-if", "misprint", "false"];
      const words = new Map(rows.map((row) => [row, row.querySelector("summary").textContent.toLowerCase()]));
      const fits = (row, wanted) => {
        const { source, section, verdict } = row.dataset;
        return (!wanted.source || source === wanted.source)
          && (!wanted.section || section === wanted.section)
          && (!wanted.verdict || verdict === wanted.verdict
            || (wanted.verdict === "failing" && failing.includes(verdict)))
          && wanted.words.toLowerCase().split(/\s+/).every((word) => words.get(row).includes(word));
      };
      const filter = () => {
        const wanted = Object.fromEntries(new FormData(form));
        let shown = 0;
        for (const row of rows) {
          row.hidden = !fits(row, wanted);
          shown += !row.hidden;
        }
        count.textContent = `${shown} of ${rows.length} statements`;
      };
      const open = () => {
        const row = rows.find((r) => `#${r.id}` === decodeURIComponent(location.hash));
        if (!row) return;
        form.reset();
        filter();
        row.open = true;
        row.scrollIntoView();
      };
      for (const event of ["input", "change"]) {  // some tools that fill forms send the second alone
        form.elements.source.addEventListener(event, () => { form.elements.section.value = ""; });
        form.addEventListener(event, filter);
      }
      window.addEventListener("hashchange", open);
      window.addEventListener("load", open);  // what loads late moves the row
      filter();
      open();
    }
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();

/* Printed columns and differences keep their lines on a narrow page, and scroll; sentences beside them wrap. */
document.addEventListener("DOMContentLoaded", () => {
  const columns = /\S {2,}\S|^\s*[+-]\s/;
  for (const printed of document.querySelectorAll(".bd-article div.cell_output pre")) {
    const lines = printed.textContent.split(/(?<=\n)/);
    const colored = [...printed.children].some((part) => part.textContent);
    if (colored || !lines.some((line) => columns.test(line))) continue;
    printed.replaceChildren(...lines.map((line) => {
      const span = document.createElement("span");
      span.className = columns.test(line) ? "kl-line kl-columns" : "kl-line";
      span.textContent = line;
      return span;
    }));
  }
});
