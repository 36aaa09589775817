/* A formula in a line of text that is wider than the page gets a box of its own to scroll in. */
(() => {
  const fit = () => {
    for (const formula of document.querySelectorAll('.bd-article mjx-container:not([display="true"])')) {
      const whole = formula.closest(".kl-held") || formula;  // with the comma that follows
      const line = formula.closest("p, li, td, th, dd, dt, figcaption, section") || document.body;
      for (const part of [whole, formula]) part.classList.remove("kl-scroll");
      const wide = whole.getBoundingClientRect().width > line.clientWidth;
      for (const part of [whole, formula]) part.classList.toggle("kl-scroll", wide);
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

/* The ledger: rows are shown and hidden by what the form says; a link to a row opens it, or the page that has it. */
(() => {
  const start = () => {
    for (const ledger of document.querySelectorAll(".kl-ledger")) {
      const form = ledger.querySelector("form");
      const rows = [...ledger.querySelectorAll(".kl-row, .kl-index > li")];
      const sections = [...ledger.querySelectorAll("section")];
      const count = ledger.querySelector(".kl-count");
      const failing = ["only-if", "misprint", "false"];
      const words = new Map(rows.map((row) => [row, (row.querySelector("summary") ?? row).textContent.toLowerCase()]));
      const of = (row) => ({
        source: row.closest("[data-source]").dataset.source,
        section: row.dataset.section,
        chapter: row.dataset.c,
        verdict: row.dataset.verdict ?? row.className,
      });
      const fits = (row, wanted) => {
        const own = of(row);
        return ["source", "section", "chapter"].every((name) => !wanted[name] || own[name] === wanted[name])
          && (!wanted.verdict || own.verdict === wanted.verdict
            || (wanted.verdict === "failing" && failing.includes(own.verdict)))
          && wanted.words.toLowerCase().split(/\s+/).every((word) => words.get(row).includes(word));
      };
      const filter = () => {
        const wanted = Object.fromEntries(new FormData(form));
        let shown = 0;
        for (const row of rows) {
          row.hidden = !fits(row, wanted);
          shown += !row.hidden;
        }
        for (const section of sections) section.hidden = !section.querySelector("li:not([hidden])");
        count.textContent = `${shown} of ${rows.length} statements`;
      };
      const open = () => {
        const hash = decodeURIComponent(location.hash);
        const row = rows.find((r) => r.id && `#${r.id}` === hash);
        if (row) {
          form.reset();
          filter();
          row.open = true;
          row.scrollIntoView();
        } else if (hash.startsWith("#claim-")) {
          const link = rows.map((r) => r.querySelector("a")).find((a) => a?.hash === hash);
          if (link) location.replace(link.href);
        } else if (hash.startsWith("#chapter=")) {
          const option = [...form.elements.chapter.options].find((o) => `#chapter=${o.dataset.chapter}` === hash);
          if (!option) return;
          form.reset();
          option.selected = true;
          filter();
          form.scrollIntoView();
        }
      };
      for (const event of ["input", "change"]) form.addEventListener(event, filter);  // some tools send the second alone
      window.addEventListener("hashchange", open);
      window.addEventListener("load", open);  // what loads late moves the row
      filter();
      open();
    }
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();

/* Printed text on a narrow page: a sentence that was wrapped at 80 columns is one line again, which wraps there and
   hangs; rows of numbers and lines of code keep their lines, and scroll. */
document.addEventListener("DOMContentLoaded", () => {
  const FULL = 80;
  const rows = /\S {2,}\S.*\S {2,}\S|^\s*[+-]\s/;
  const label = /\S {2,}\S|^\s*[\w, ]{2,40}:(\s|$)/;
  const code = /^\s*(def|class|import|from|return) |^\s*\w+ = /;
  const first = (line) => line.trim().split(/\s/)[0].length;
  const goesOn = (line, next) => line.trim() && next.trim() && !label.test(next)
    && line.trimEnd().length + 1 + first(next) > FULL;
  for (const printed of document.querySelectorAll(".bd-article div.cell_output pre")) {
    const lines = printed.textContent.split(/(?<=\n)/);
    const colored = [...printed.children].some((part) => part.textContent);
    if (colored || !lines.some((line, at) => rows.test(line) || (at && goesOn(lines[at - 1], line)))) continue;
    const joined = [];
    lines.forEach((line, at) => {
      const before = joined[joined.length - 1];
      const more = before && !before.kept && goesOn(lines[at - 1], line);
      const kept = rows.test(line) || (!more && code.test(line));
      if (more && !kept) before.parts.push(line);
      else joined.push({ kept, parts: [line] });
    });
    printed.replaceChildren(...joined.map(({ kept, parts }) => {
      const span = document.createElement("span");
      span.className = kept ? "kl-line kl-columns" : "kl-line";
      parts.forEach((part, at) => {
        if (at) {  // the break and the indent that a wide page shows; one space on a narrow one
          const wrap = document.createElement("span");
          wrap.className = "kl-wrap";
          wrap.textContent = `\n${/^ */.exec(part)[0]}`;
          span.append(wrap);
        }
        span.append((at ? part.trimStart() : part).replace(/\n$/, at < parts.length - 1 ? "" : "\n"));
      });
      return span;
    }));
  }
});
