// Run a cell in its page: the button opens the cell as an editor, and what Python prints takes the output's place.
(() => {
  "use strict";
  const { made, clear, refused } = window.klVerdict;

  const setUp = (root) => {
    const cell = root.closest(".cell");
    const form = root.querySelector("form");
    const { code: area } = form.elements;
    const box = root.querySelector(".kl-verdict-of-loss");
    const own = cell.querySelector(".cell_input pre").textContent.trimEnd();
    let editor = null;  // until the first run, the cell is as the page has it

    const show = ({ printed, error }) => {
      clear(box);
      const text = made("pre", "", printed || (error ? "" : "It printed nothing."));
      text.tabIndex = 0;
      if (text.textContent) box.append(text);
      if (error) box.append(made("p", "kl-refused", error));
      Object.assign(box.dataset, { printed, error });
      box.hidden = false;
      cell.classList.add("kl-answered");
    };
    const python = window.klPython(root, {
      command: "this page's notebook",
      endless: "A loop in it may never end.",
      working: () => "Running",
      hear: show,
      refuse: (text) => refused(box, text),
    });

    const open = (code) => {
      area.value = code;
      editor ??= window.klEditor.start(area);
      editor.show();
      cell.classList.add("kl-open");
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (python.busy() || !python.able()) return;
      if (!cell.classList.contains("kl-open")) open(own);
      python.ask({ code: area.value, before: root.dataset.before });
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    root.querySelector("[data-back]").addEventListener("click", () => {
      if (python.busy()) python.end("");
      clear(box);
      cell.classList.remove("kl-open", "kl-answered");
      root.querySelector("[type=submit]").focus();
    });
    form.hidden = false;
  };

  document.querySelectorAll(".kl-here").forEach(setUp);  // deferred: the page is there
})();
