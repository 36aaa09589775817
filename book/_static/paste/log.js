// Paste your log: a text or a file, and the report that Python writes of it.
(() => {
  "use strict";
  const FIELDS = ["framework", "release", "beta", "answers", "group"];
  const { made, clear, refused } = window.klVerdict;

  const paragraph = ({ mark, text, style }) => {
    const line = made("p");
    line.dataset.style = style;
    if (mark) line.append(made("span", "kl-mark", `${mark} `));
    line.append(text);
    return line;
  };

  const show = (box, { card, text, sections }) => {
    clear(box);
    for (const section of sections) {
      const block = made("section");
      block.append(...section.map(paragraph));
      box.append(block);
    }
    box.dataset.headline = card.headline;
    box.dataset.level = card.level;
    box.dataset.card = JSON.stringify(card);
    box.dataset.text = text;
    box.hidden = false;
  };

  const setUp = (root) => {
    const form = root.querySelector("form");
    const { log: area, file: input, example } = form.elements;
    const box = root.querySelector("#verdict");
    const examples = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    const refuse = (text) => refused(box, text);
    const python = window.klPython(root, {
      command: "kl-companion report",
      endless: "kl-companion report on your machine is faster.",
      working: () => "Reading the log",
      hear: (answer) => (answer.error ? refuse(answer.error) : show(box, answer)),
      refuse,
    });

    const run = async () => {
      clear(box);
      if (!python.able()) return;
      const [file] = input.files;
      const fields = Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value]));
      const content = await (file || new Blob([area.value])).arrayBuffer();
      python.ask({ file: file ? file.name : "", ...fields }, new Uint8Array(content));
    };

    // One log at a time: a file takes the place of the text, and the text that of a file.
    const only = ({ text = "", number = "", files = null }) => {
      [area.value, example.value] = [text, number];
      if (files) input.files = files;
      else input.value = "";
      clear(box);
    };
    example.addEventListener("change", ({ target: { value } }) => only({ text: examples[value]?.log, number: value }));
    input.addEventListener("change", () => only({ files: input.files }));
    area.addEventListener("input", () => { [example.value, input.value] = ["", ""]; });
    root.addEventListener("dragover", (event) => event.preventDefault());
    root.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      only({ files: event.dataTransfer.files });
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!python.busy()) run();
    });
    form.hidden = false;
  };

  document.querySelectorAll(".kl-paste").forEach(setUp);  // deferred: the page is there
})();
