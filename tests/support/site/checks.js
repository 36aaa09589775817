// Questions to a page. klSettle: wait until formulas are set. klOnce: what does not depend on theme and width.
// klLayout: what depends on the width. klLook: what depends on both. Each answers with a list of problems in words.
// klPlainCode and klThin: leave fewer elements, for good, before and after widths are asked for.
// klStill: wait until the theme has answered a change of the window or of the elements.
(() => {
  const article = () => document.querySelector(".bd-article") || document.body;
  const name = (e) => `<${e.tagName.toLowerCase()} class="${(e.getAttribute("class") || "").slice(0, 60)}"> `
    + JSON.stringify((e.textContent || "").trim().slice(0, 50));
  const shown = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && e.getBoundingClientRect().width > 0;
  const parse = (color) => {
    const numbers = (color.match(/[\d.]+/g) || []).map(Number);
    const scale = color.startsWith("color(") ? 255 : 1;
    return { r: numbers[0] * scale, g: numbers[1] * scale, b: numbers[2] * scale, a: numbers.length > 3 ? numbers[3] : 1 };
  };
  const luminance = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (e, known) => {
    if (!e) return { r: 255, g: 255, b: 255, a: 1 };
    if (!known.has(e)) {
      const color = parse(getComputedStyle(e).backgroundColor);
      known.set(e, color.a > 0.9 ? color : behind(e.parentElement, known));
    }
    return known.get(e);
  };
  const texts = function* (root) {
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      if (node.textContent.trim() && node.parentElement) yield node;
    }
  };

  window.klSettle = (done) => {
    const still = document.createElement("style");
    still.textContent = "* { transition: none !important; animation: none !important }";
    document.head.append(still);
    const math = document.querySelector(".math");
    const wait = (tries) => {
      if (!math || tries === 0) return done();
      if (window.MathJax && MathJax.startup && MathJax.startup.promise) return MathJax.startup.promise.then(() => done());
      setTimeout(() => wait(tries - 1), 50);
    };
    wait(200);
  };

  // The page's own clock: on a busy machine a timer comes late, but never before one that was due earlier.
  let turned = performance.now();
  window.addEventListener("resize", () => { turned = performance.now(); });
  window.klStill = (milliseconds, done) => requestAnimationFrame(() => {
    setTimeout(done, Math.max(0, turned + milliseconds - performance.now()));
  });

  // The first element of each style: the elements above it and it itself, by their tags, classes, roles and style
  // attributes, and by whether a box is open: what a closed one hides stands for nothing that is seen.
  const firsts = (root) => {
    const numbers = new Map([["", 0]]), styles = new Map([[root.parentElement, 0]]), found = new Set();
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
    for (let e = root; e; e = walk.nextNode()) {
      const own = ["class", "style", "role", "open", "hidden"].map((name) => e.getAttribute(name));
      const style = [styles.get(e.parentElement), e.tagName, ...own].join();
      if (!numbers.has(style)) {
        numbers.set(style, numbers.size);
        found.add(e);
      }
      styles.set(e, numbers.get(style));
    }
    return found;
  };

  // A browser, and axe most of all, takes its time by the number of elements. Same lines and widths stay here.
  window.klPlainCode = () => {
    const first = firsts(document.body);
    for (const span of document.querySelectorAll("pre span:not([id])")) {
      if (!first.has(span)) span.replaceWith(...span.childNodes);
    }
    for (const code of document.querySelectorAll("pre")) code.normalize();
  };

  // Formulas are drawn by one program, rows of a table and entries of a list by one template: of more than a few
  // like ones those stay that come first or hold the first element of a style, or an image; a formula is a word.
  // What is said of each one alone, like the name of a link, is asked before, by klOnce.
  window.klThin = (few) => {
    window.bootstrap?.ScrollSpy?.getInstance(document.body)?.dispose(); // it would look for entries that are gone
    const formulas = [...document.querySelectorAll("mjx-container")];
    for (const formula of formulas) formula.textContent = "formula";
    const first = firsts(document.body);
    // each one can be reached by keyboard, and axe measures each such element against all others
    for (const formula of formulas.slice(few)) if (!first.has(formula)) formula.replaceWith("formula");
    const spare = (e) => { if (![e, ...e.querySelectorAll("*")].some((x) => first.has(x) || x.tagName === "IMG")) e.remove(); };
    for (const parent of document.querySelectorAll("body *")) {
      if (parent.childElementCount <= few) continue;
      const seen = {};
      for (const child of [...parent.children]) {
        const kind = child.tagName + child.className;
        seen[kind] = (seen[kind] || 0) + 1;
        if (seen[kind] > few) spare(child);
      }
    }
    const likes = [ // wherever they stand
      ".bd-article li", ".bd-sidebar-primary li", ".toc-h3", ".toc-h4", ".genindextable li", "section > p",
      "tbody tr:not(:first-child)", "div.cell", "dl.py", ".kl-row", ".kl-erratum",
    ];
    for (const like of likes) {
      [...document.querySelectorAll(like)].slice(few).forEach(spare);
    }
    turned = performance.now(); // the theme looks at its boxes anew, as after a change of the window
  };

  window.klTheme = (theme) => {
    document.documentElement.dataset.theme = document.documentElement.dataset.mode = theme;
  };

  window.klOnce = () => {
    const problems = [];
    for (const e of document.querySelectorAll(".math")) {
      if (!e.querySelector("mjx-container")) problems.push(`formula not set: ${name(e)}`);
    }
    for (const e of document.querySelectorAll("mjx-merror, [data-mjx-error]")) {
      problems.push(`formula in error: ${e.getAttribute("data-mjx-error") || e.textContent}`);
    }
    for (const e of document.querySelectorAll('mjx-container [mathcolor="red"], mjx-container [style*="color: red"]')) {
      problems.push(`formula with an unknown macro: ${name(e.closest("mjx-container"))}`);
    }
    const raw = /\\[([\])]|\$|\\(frac|mathrm|mathbb|mathcal|operatorname|left|right|pi|theta|log|exp|sum|int|KL|D|E|sg|pref|Var|text|label|begin|end)(?![a-z])|\{(glue|cite|prf|numref|eq|doc|ref|math|code)[:}]/;
    const skip = "code, pre, script, style, textarea, mjx-container, .math, template";
    for (const node of texts(document.body)) {
      if (!node.parentElement.closest(skip) && raw.test(node.textContent)) {
        problems.push(`raw markup in the text: ${JSON.stringify(node.textContent.trim().slice(0, 80))}`);
      }
    }
    for (const label of document.querySelectorAll("label")) {
      const inside = label.querySelector("input, select, textarea");
      if (inside && label.control !== inside) problems.push(`a label names something else than its control: ${name(inside)}`);
    }
    for (const e of document.querySelectorAll("a[href], button, summary, th")) {
      const said = [e, ...e.querySelectorAll("[aria-label], [title], img")]
        .some((x) => ["aria-label", "aria-labelledby", "title", "alt"].some((key) => (x.getAttribute(key) || "").trim()));
      if (!said && !e.textContent.trim()) problems.push(`nothing to read in ${e.outerHTML.slice(0, 120)}`);
    }
    const known = new Set();
    for (const { id } of document.querySelectorAll("[id]")) {
      if (known.has(id)) problems.push(`two elements have the id ${id}`);
      known.add(id);
    }
    if (raw.test(document.title)) problems.push(`raw TeX in the title: ${document.title}`);
    for (const e of document.querySelectorAll("img")) {
      if (!(e.getAttribute("alt") || "").trim() && e.closest(".bd-article")) problems.push(`image without a text: ${e.src.slice(0, 60)}`);
      if (e.complete && e.naturalWidth === 0 && shown(e)) problems.push(`broken image: ${e.src.slice(0, 80)}`);
    }
    return problems;
  };

  window.klLayout = () => {
    const problems = [];
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > width + 1) {
      problems.push(`the page is ${document.documentElement.scrollWidth} px wide in a window of ${width}`);
    }
    for (const e of article().querySelectorAll("table, pre, img, figure, mjx-container, dt, .admonition, .proof")) {
      if (!shown(e) || e.closest("mjx-assistive-mml")) continue;
      const right = e.getBoundingClientRect().right;
      for (let box = e.parentElement; box; box = box.parentElement) {
        const overflow = getComputedStyle(box).overflowX;
        if (overflow === "auto" || overflow === "scroll") break;
        const edge = box === document.documentElement ? width : box.getBoundingClientRect().right;
        if ((overflow === "hidden" || overflow === "clip" || box === document.documentElement) && right > edge + 2) {
          problems.push(`cut at the right by ${Math.round(right - edge)} px: ${name(e)}`);
          break;
        }
      }
    }
    return problems;
  };

  window.klLook = (theme) => {
    const problems = [];
    for (const e of article().querySelectorAll(".kl-figure")) {
      const visible = [...e.querySelectorAll("img, .kl-stage > svg")].filter(shown);
      if (shown(e) && visible.length !== 1) problems.push(`a figure shows ${visible.length} drawings`);
    }
    // AA: 4.5 to 1, and 3 to 1 for large text. The first text of each look is marked: axe is to see it too.
    let pale = 0;
    const looks = new Set(), grounds = new Map();
    for (const e of new Set([...texts(document.body)].map((node) => node.parentElement))) {
      if (e.closest("mjx-assistive-mml, .headerlink, script, style, noscript, template")) continue;
      const { color, fontSize, fontWeight } = getComputedStyle(e);
      const ground = behind(e, grounds);
      const look = [color, ground.r, ground.g, ground.b, fontSize, fontWeight].join();
      if (looks.has(look) || !shown(e)) continue;
      looks.add(look);
      if (!e.closest("mjx-container")) e.dataset.klLook = looks.size;
      const [a, b] = [luminance(parse(color)), luminance(ground)].sort((x, y) => y - x);
      const contrast = (a + 0.05) / (b + 0.05);
      const size = parseFloat(fontSize);
      const least = size >= 24 || (size >= 18.66 && fontWeight >= 700) ? 3 : 4.5;
      if (contrast < least - 0.005 && pale++ < 8) problems.push(`contrast ${contrast.toFixed(2)}: ${name(e)}`);
    }
    if (theme === "dark") {
      for (const e of document.body.querySelectorAll(":not(mjx-container *)")) {
        const color = parse(getComputedStyle(e).backgroundColor);
        if (!(color.a > 0.5 && luminance(color) > 0.6)) continue;
        const box = e.getBoundingClientRect();
        if (box.width > 60 && box.height > 16 && shown(e)) problems.push(`white box: ${name(e)}`);
      }
      for (const e of document.querySelectorAll("img")) {
        if (shown(e) && e.complete && e.naturalWidth && corners(e)) problems.push(`image with a white ground: ${e.alt || e.src.slice(0, 60)}`);
      }
    }
    return problems;
  };

  const corners = (image) => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 32;
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0, 32, 32);
    return [[1, 1], [30, 1], [1, 30], [30, 30]].every(([x, y]) => {
      const [r, g, b, a] = context.getImageData(x, y, 1, 1).data;
      return a > 128 && luminance({ r, g, b }) > 0.7;
    });
  };
})();
