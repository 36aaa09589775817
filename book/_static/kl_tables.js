/* The table of frameworks: a box filters its settings, opens the folds that hold what is looked for, and closes
   the others. The name of a framework counts as a word of each of its rows. */
(() => {
  const words = (element) => element.textContent.toLowerCase().replace(/\s+/g, " ");
  const filterable = (table) => {
    const groups = [...table.tBodies].map((body) => ({
      body,
      folds: [...body.querySelectorAll("tr.kl-folded")],
      rows: [...body.querySelectorAll("tr.kl-setting")].map((row) => ({
        row, text: `${words(body.querySelector("tr.kl-framework"))} ${words(row)}`,
      })),
    }));
    const total = groups.reduce((sum, group) => sum + group.rows.length, 0);
    const box = document.createElement("div");
    box.className = "kl-table-filter";
    box.innerHTML = `<label>Filter <input type="search" autocomplete="off" placeholder="an option, a framework"></label>`
      + `<span role="status">${total} rows</span>`;
    const [input, count] = [box.querySelector("input"), box.querySelector("span")];
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const { body, folds, rows } of groups) {
        for (const { row, text } of rows) row.hidden = !wanted.every((word) => text.includes(word));
        for (const fold of folds) {
          const inside = fold.querySelector("tr.kl-setting:not([hidden])");
          fold.hidden = !inside;
          fold.querySelector("details").open = Boolean(inside) && wanted.length > 0;
        }
        const here = rows.filter(({ row }) => !row.hidden).length;
        body.hidden = here === 0;
        shown += here;
      }
      count.textContent = shown === total ? `${total} rows` : `${shown} of ${total} rows`;
    });
    table.closest("div.kl-frameworks").before(box);
  };
  const start = () => document.querySelectorAll("table.kl-frameworks").forEach(filterable);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
/* Tables of more than eight rows: each header sorts, numbers as numbers, and a box filters. The order of the page
   comes back with a third press. The stylesheet keeps the room for the box, so nothing jumps. */
(() => {
  const MANY = 8;
  const TABLES = ".bd-article :is(table.dataframe, table.table, table.docutils)";
  const NUMBER = /^[-−+]?\d[\d,]*(\.\d+)?(e[-+−]?\d+)?( ?[%kM])?( ±.*)?$/i;

  /* A header cell for each column: the lowest one that has words, or is there, over that column alone. */
  const headers = (table) => {
    const found = [];
    const taken = [];
    [...table.tHead.rows].forEach((row, down) => {
      let at = 0;
      for (const cell of row.cells) {
        while (taken[down] && taken[down][at]) at += 1;
        for (let y = down; y < down + cell.rowSpan; y += 1) {
          taken[y] = taken[y] || [];
          for (let x = at; x < at + cell.colSpan; x += 1) taken[y][x] = true;
        }
        if (cell.colSpan === 1 && (cell.textContent.trim() || !found[at])) found[at] = cell;
        at += cell.colSpan;
      }
    });
    return found;
  };
  /* A cell that spans rows is written into each of them: rows can then stand in any order. */
  const unspan = (body) => {
    for (const row of body.rows) {
      for (const cell of [...row.cells]) {
        const { rowSpan } = cell;
        if (rowSpan < 2) continue;
        const at = cell.cellIndex;
        cell.rowSpan = 1;
        let below = row;
        for (let n = 1; n < rowSpan && (below = below.nextElementSibling); n += 1) {
          below.insertBefore(cell.cloneNode(true), below.cells[at] || null);
        }
      }
    }
  };
  /* What a reader sees, formulas as their TeX or their letters. */
  const words = (cell) => {
    if (!cell) return "";
    const copy = cell.cloneNode(true);
    copy.querySelectorAll("mjx-assistive-mml, script").forEach((e) => e.remove());
    return copy.textContent.trim().replace(/\s+/g, " ");
  };
  const value = (text) => {
    if (!NUMBER.test(text)) return null;
    const scale = { k: 1e3, M: 1e6 }[text.split(" ±")[0].slice(-1)] || 1;
    return scale * parseFloat(text.replace(/[−]/g, "-").replace(/,/g, ""));
  };
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x !== null && y !== null) return x - y;
    if ((x === null) !== (y === null)) return x === null ? 1 : -1;
    return a.localeCompare(b, "en", { numeric: true, sensitivity: "base" });
  };

  const sortable = (table, state) => {
    headers(table).forEach((given, column) => {
      let cell = given;
      if (cell.tagName !== "TH") {  // an empty corner is no header until it sorts the names of the rows
        cell = document.createElement("th");
        cell.append(...given.childNodes);
        given.replaceWith(cell);
      }
      const button = document.createElement("button");
      button.type = "button";
      button.className = "kl-sort";
      if (cell.querySelector("a, [tabindex]")) {  // a link in the header stays beside the button, not in it
        button.setAttribute("aria-label", `sort by ${words(cell)}`);
      } else {
        if (!cell.textContent.trim()) button.setAttribute("aria-label", "row");
        button.append(...cell.childNodes);
      }
      cell.append(button);
      cell.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const now = { none: "ascending", ascending: "descending", descending: "none" }[cell.getAttribute("aria-sort")];
        table.querySelectorAll("th[aria-sort]").forEach((th) => th.setAttribute("aria-sort", "none"));
        cell.setAttribute("aria-sort", now);
        const rows = [...state.rows];
        if (now !== "none") {
          const sign = now === "ascending" ? 1 : -1;
          const keys = new Map(rows.map((row) => [row, words(row.cells[column])]));
          rows.sort((a, b) => {
            const empty = (keys.get(a) === "") - (keys.get(b) === "");
            return empty || sign * compare(keys.get(a), keys.get(b));
          });
        }
        table.tBodies[0].append(...rows);
      });
    });
  };
  const filterable = (table, state, number) => {
    const box = document.createElement("div");
    box.className = "kl-table-filter";
    box.innerHTML = `<label>Filter <input type="search" autocomplete="off" id="kl-filter-${number}" placeholder="words or numbers"></label>`
      + `<span role="status">${state.rows.length} rows</span>`;
    const [input, count] = [box.querySelector("input"), box.querySelector("span")];
    input.addEventListener("input", () => {
      table.style.minWidth = table.style.minWidth || `${table.offsetWidth}px`;
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of state.rows) {
        state.texts = state.texts || new Map(state.rows.map((r) => [r, words(r).toLowerCase()]));
        row.hidden = !wanted.every((word) => state.texts.get(row).includes(word));
        shown += !row.hidden;
      }
      count.textContent = shown === state.rows.length ? `${shown} rows` : `${shown} of ${state.rows.length} rows`;
    });
    const frame = table.closest(".pst-scrollable-table-container, .table-wrapper, .output.text_html") || table;
    frame.before(box);
  };

  const start = () => {
    [...document.querySelectorAll(TABLES)].forEach((table, number) => {
      const body = table.tBodies[0];
      if (!table.tHead || !body || table.tBodies.length > 1 || body.rows.length <= MANY) return;
      if (table.closest("details.kl-row, .kl-preview, .kl-no-sort") || body.querySelector("[colspan]:not([colspan='1'])")) return;
      unspan(body);
      const state = { rows: [...body.rows] };
      table.classList.add("kl-many");
      sortable(table, state);
      filterable(table, state, number);
    });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
