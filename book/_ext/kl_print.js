// Before printing: wait for the formulas, make fit what is wider than the page, and say what is wrong.
const done = arguments[arguments.length - 1];
const problems = [];
const still = document.createElement("style");
still.textContent = "* { transition: none !important; animation: none !important }";
document.head.append(still);

// All widths are read before any is changed: a page of this length takes seconds to lay out again.
const fit = () => {
  const changes = [];
  for (const table of document.querySelectorAll("main table")) {
    if (table.parentElement.closest("table")) continue;
    const box = table.closest("section, main, .cell_output, dd, li") || document.body;
    const zoom = (box.clientWidth - 1) / table.scrollWidth;
    if (zoom >= 1) continue;
    changes.push(() => { table.style.zoom = Math.max(0.45, zoom); });
    if (zoom < 0.43) problems.push(`table wider than the page: ${JSON.stringify(table.textContent.trim().slice(0, 60))}`);
  }
  for (const formula of document.querySelectorAll("main mjx-container")) {
    const box = formula.closest("p, li, td, th, dd, dt, figcaption, section, h2, h3") || document.body;
    const [wide, room] = [formula.querySelector("mjx-math").getBoundingClientRect().width, box.clientWidth];
    if (!room || wide <= room) continue;
    changes.push(() => { formula.style.fontSize = `${Math.max(0.5, 0.98 * room / wide) * 100}%`; });
  }
  changes.forEach((change) => change());
};

const look = () => {
  fit();
  for (const e of document.querySelectorAll(".math")) {
    if (!e.querySelector("mjx-container")) problems.push(`formula not set: ${e.textContent.slice(0, 60)}`);
  }
  for (const e of document.querySelectorAll("mjx-merror, [data-mjx-error]")) {
    problems.push(`formula in error: ${e.getAttribute("data-mjx-error") || e.textContent}`);
  }
  for (const e of document.images) {
    if (e.complete && e.naturalWidth === 0) problems.push(`broken image: ${e.src.slice(0, 80)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  const known = new Set();
  for (const id of ids) {
    if (known.has(id) && !id.startsWith("MJX") && !id.includes("mjx")) problems.push(`two elements have the id ${id}`);
    known.add(id);
  }
  for (const e of document.querySelectorAll('a[href^="#"]')) {
    const id = decodeURIComponent(e.getAttribute("href").slice(1));
    if (!known.has(id)) problems.push(`a link leads to ${id}, which is not on the page`);
  }
  done([...new Set(problems)].slice(0, 40));
};

const wait = (tries) => {
  if (tries === 0) return done(["formulas were not set in four minutes"]);
  if (!document.querySelector(".math")) return look();
  if (window.MathJax && MathJax.startup && MathJax.startup.promise) {
    return MathJax.startup.promise.then(() => document.fonts.ready).then(look, (error) => done([String(error)]));
  }
  setTimeout(() => wait(tries - 1), 100);
};
wait(2400);
