/* The search: an index of all sections (kl_entries.js) by MiniSearch, ordered by what a reader looks for first. */
document.addEventListener("DOMContentLoaded", () => {
  const { entries, numbers } = window.klSearch;
  const KEYS = ["page", "anchor", "title", "heading", "text", "code", "words"];
  const documents = entries.map((values, id) => Object.fromEntries([["id", id], ...KEYS.map((key, i) => [key, values[i]])]));

  // "kl_loss_coef", "top-k" and "k3++" are words, and so are their parts
  const WHOLE = /[\p{L}\p{N}](?:[\p{L}\p{N}_]|[-.](?=[\p{L}\p{N}]))*\+*/gu;
  const whole = (text) => text.toLowerCase().match(WHOLE) || [];
  const parts = (word) => word.split(/[-_.+]+/).filter((part) => part);
  const plural = (word) => (word.length > 4 ? word.replace(/(?<=[^s])s$/, "") : word);
  const words = (text) => whole(text).flatMap((word) => {
    const own = parts(word);
    return own.length > 1 || own[0] !== word ? [word, ...own] : [word];
  });

  // words of questions that say nothing
  const STOP = new Set("a an and are at do does for how i in is it my of on or the to what when why with".split(" "));
  const sought = (query) => {
    const all = whole(query);
    const left = all.filter((word) => !STOP.has(word));
    return left.length ? left : all;
  };

  const index = new MiniSearch({
    fields: ["title", "heading", "text", "code", "words"],
    tokenize: words,
    processTerm: plural,
  });
  index.addAll(documents);

  // a reader wants a chapter or a term before lists of everything
  const WEIGHTS = [
    [/^book\/(glossary|questions|which_one)/, 1.6],
    [/^book\/part/, 1.3],
    [/^book\/(quickstart|paste|cheat_sheet|explorer)/, 1.3],
    [/^book\/(api|contributors|refusals|reliability|how_)/, 0.15],
    [/^book\/(intro|experiments|errata|ledger|notation|what_changed|frameworks_by_name|monitor)/, 0.35],
  ];
  const weight = (page) => (WEIGHTS.find(([pattern]) => pattern.test(page)) || [null, 1])[1];
  const same = (text) => whole(text).map(plural).join(" ");

  function found(query) {
    const asked = sought(query);
    const options = {
      tokenize: sought,
      boost: { title: 4, heading: 5, words: 5, text: 1, code: 0.3 },
      prefix: (term) => term.length > 2,
      fuzzy: (term) => (term.length > 5 && !term.includes("_") ? 0.15 : false),
      weights: { fuzzy: 0.1, prefix: 0.4 },
      boostDocument: (id) => weight(documents[id].page),
    };
    let results = index.search(query, { ...options, combineWith: "AND" });
    if (results.length < 3 && asked.length > 1) {
      const known = new Set(results.map((result) => result.id));
      results = [...results, ...index.search(query, options).filter((result) => !known.has(result.id))];
    }
    const phrase = same(query);
    for (const result of results) {
      const entry = documents[result.id];
      const typed = entry.words.split(",").map(same).includes(phrase);
      const named = same(entry.heading) === phrase || (!entry.anchor && same(entry.title) === phrase);
      if (typed || (named && (!entry.page.startsWith("book/api/") || phrase.includes("_")))) result.score *= 4;
      else if (asked.length > 1 && same(`${entry.heading} . ${entry.text}`).includes(phrase)) result.score *= 1.7;
      if (result.queryTerms.length === asked.length) result.score *= 1.5;
    }
    return results.sort((a, b) => b.score - a.score);
  }

  function excerpt(text, terms) {
    const low = text.toLowerCase();
    const at = Math.min(...terms.map((term) => low.indexOf(term)).filter((place) => place >= 0));
    const start = Number.isFinite(at) ? low.lastIndexOf(" ", Math.max(0, at - 70)) + 1 : 0;
    const end = text.indexOf(" ", start + 190);
    const shown = text.slice(start, end < 0 ? undefined : end);
    return `${start ? "… " : ""}${shown}${end < 0 ? "" : " …"}`;
  }

  function marked(text, terms) {
    const line = document.createElement("p");
    const pattern = terms.map((term) => term.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).sort((a, b) => b.length - a.length);
    const pieces = pattern.length ? text.split(new RegExp(`(${pattern.join("|")})`, "iu")) : [text];
    pieces.forEach((piece, i) => {
      const node = i % 2 ? document.createElement("mark") : document.createTextNode(piece);
      if (i % 2) node.textContent = piece;
      line.append(node);
    });
    return line;
  }

  function link(entry, text) {
    const a = document.createElement("a");
    a.href = `${entry.page}.html${entry.anchor ? `#${encodeURIComponent(entry.anchor)}` : ""}`;
    a.textContent = text;
    return a;
  }

  /* Pages in the order of their best sections; of a page the best, and links to two more. */
  function show(query) {
    const target = document.getElementById("search-results");
    const pages = new Map();
    for (const result of query.trim() ? found(query) : []) {
      const entry = documents[result.id];
      if (!pages.has(entry.page)) pages.set(entry.page, []);
      pages.get(entry.page).push({ ...entry, terms: result.terms });
    }
    const summary = document.createElement("p");
    summary.setAttribute("role", "status");
    const count = `${pages.size} page${pages.size === 1 ? "" : "s"}`;
    if (query.trim()) summary.textContent = pages.size ? count : `Nothing in the book has “${query.trim()}”.`;
    const list = document.createElement("ul");
    list.className = "search kl-found";
    for (const [page, [best, ...others]] of [...pages].slice(0, 30)) {
      const item = document.createElement("li");
      const title = numbers[page] ? `${numbers[page]} ${best.title}` : best.title;
      item.append(link(best, best.heading && best.heading !== best.title ? `${title}: ${best.heading}` : title));
      // a page that was found by what people type for it shows the section that has their words
      const says = [best, ...others].find((entry) => entry.terms.some((term) => entry.text.toLowerCase().includes(term))) || best;
      item.append(marked(excerpt(says.text || says.code, says.terms), says.terms));
      const more = others.filter((entry) => entry.anchor && entry.heading).slice(0, 2);
      if (more.length) {
        const also = document.createElement("p");
        also.className = "kl-also";
        more.forEach((entry, i) => also.append(i ? " · " : "Also: ", link(entry, entry.heading)));
        item.append(also);
      }
      list.append(item);
    }
    target.replaceChildren(summary, list);
  }

  const fields = [...document.querySelectorAll("form.bd-search input[name=q]")];
  const asked = new URLSearchParams(location.search).get("q") || "";
  let waiting = 0;
  for (const field of fields) {
    field.value = asked;
    field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        history.replaceState(null, "", `?q=${encodeURIComponent(field.value)}`);
        show(field.value);
      }, 120);
    });
  }
  show(asked);
});
