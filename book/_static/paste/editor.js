// A text area whose code is colored: the same text lies under it, cut into the theme's own classes.
window.klEditor = (() => {
  "use strict";
  const KEYWORDS = "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield";
  const TOKENS = [
    ["c1", "#[^\\n]*"],
    ["s2", "[rbfuRBFU]{0,2}(?:\"\"\"[\\s\\S]*?(?:\"\"\"|$)|'''[\\s\\S]*?(?:'''|$)|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?)"],
    ["nd", "@[\\w.]+"],
    ["nf", "(?<=\\b(?:def|class)\\s+)\\w+"],
    ["kc", "\\b(?:True|False|None)\\b"],
    ["k", `\\b(?:${KEYWORDS})\\b`],
    ["mf", "(?<![\\w.])(?:\\d[\\d_]*\\.?\\d*|\\.\\d+)(?:[eE][+-]?\\d+)?"],
    ["", "[A-Za-z_]\\w*"],
  ];
  const pattern = new RegExp(TOKENS.map(([, source]) => `(${source})`).join("|"), "g");

  // The code as text nodes and spans; nothing that is typed is ever read as HTML.
  const colored = (code) => {
    const out = document.createDocumentFragment();
    let at = 0;
    for (const match of code.matchAll(pattern)) {
      out.append(code.slice(at, match.index));
      const kind = TOKENS[match.slice(1).findIndex((part) => part !== undefined)][0];
      if (kind) {
        const span = document.createElement("span");
        span.className = kind;
        span.textContent = match[0];
        out.append(span);
      } else out.append(match[0]);
      at = match.index + match[0].length;
    }
    out.append(code.slice(at));
    return out;
  };

  // Enter keeps the indentation, and adds one after a colon. Tab leaves the editor, as everywhere on a page.
  const indent = (area, event) => {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey || event.isComposing) return;
    const before = area.value.slice(0, area.selectionStart);
    const line = before.slice(before.lastIndexOf("\n") + 1);
    const more = /^\s*/.exec(line)[0] + (line.trimEnd().endsWith(":") ? "    " : "");
    if (!more) return;
    event.preventDefault();
    document.execCommand("insertText", false, `\n${more}`);  // and not setRangeText, which cannot be undone
  };

  const start = (area) => {
    const under = area.previousElementSibling.firstElementChild;
    const show = () => under.replaceChildren(colored(`${area.value}\n`));
    area.addEventListener("input", show);
    area.addEventListener("keydown", (event) => indent(area, event));
    show();
    return { show };
  };
  return { start, colored };
})();
