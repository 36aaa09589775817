// Paste your loss: the form, the address, and what Python answers.
(() => {
  "use strict";
  const FIELDS = ["code", "name", "want", "map", "set"];

  // base64url of UTF-8, as in ...#code=...
  const encode = (text) => {
    const bytes = Array.from(new TextEncoder().encode(text), (b) => String.fromCharCode(b)).join("");
    return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  };
  const decode = (text) => {
    const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes, (c) => c.charCodeAt(0)));
  };

  const setUp = (root) => {
    const form = root.querySelector("form");
    const area = form.elements.code;
    const verdict = root.querySelector(".kl-verdict-of-loss");
    const examples = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    const own = root.dataset.page === "";  // on the page of its own, the address says what stands here
    const editor = window.klEditor.start(area);

    const refuse = (text) => window.klVerdict.refused(verdict, text);
    // What is chosen goes into the field of the form, so that a link holds it too.
    const doubt = (answer) => {
      const field = answer.names ? form.elements.name : form.elements.map;
      const ask = answer.names ? window.klVerdict.several : answer.unclear ? window.klVerdict.unclear : null;
      if (!ask) {
        refuse(answer.error);
        return;
      }
      ask(verdict, answer, (chosen) => {
        field.value = answer.names || !field.value ? chosen : `${field.value}, ${chosen}`;
        field.closest("details").open = true;
        run();
      });
    };
    const python = window.klPython(root, {
      command: "kl-companion audit",
      endless: "A loop in it may never end; if it is only slow, kl-companion audit on your machine waits for it.",
      working: (step) => (step.includes("/") ? `Enumerating: ${step}` : step),
      hear: (answer) => (answer.error ? doubt(answer) : window.klVerdict.show(verdict, answer)),
      late: (found) => window.klVerdict.picture(verdict, found),
      refuse,
    });

    const asked = () => Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value]));
    const address = () => {
      const { code, ...others } = asked();
      const said = Object.entries(others).filter(([, value]) => value);
      return `#${new URLSearchParams([["code", encode(code)], ["run", "1"], ...said])}`;
    };

    const run = () => {
      window.klVerdict.clear(verdict);
      if (!python.able()) return;
      if (own) history.replaceState(null, "", address());
      python.ask(asked());
    };

    const fill = (values) => {
      for (const name of FIELDS) form.elements[name].value = values[name] || "";
      form.elements.example.value = examples.findIndex((entry) => entry.code === values.code).toString().replace("-1", "");
      root.querySelector("details").open = Boolean(values.name || values.map || values.set);
      editor.show();
      window.klVerdict.clear(verdict);
    };
    const fromAddress = () => {
      const given = new URLSearchParams(location.hash.slice(1));
      if (!own || !given.has("code")) return;
      try {
        fill({ ...Object.fromEntries(given), code: decode(given.get("code")) });
      } catch {
        refuse("The address holds no readable code: expected #code= with base64url of UTF-8 text.");
        return;
      }
      if (python.busy()) python.end("");
      if (given.get("run") === "1") run();
    };

    form.elements.example.addEventListener("change", ({ target }) => {
      if (target.value !== "") fill(examples[target.value]);
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!python.busy()) run();
    });
    area.addEventListener("input", () => { form.elements.example.value = ""; });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    root.querySelector("[data-link]").addEventListener("click", async () => {
      const page = new URL(root.dataset.page || location.pathname, document.baseURI);
      page.hash = address();
      let said = "Copied: whoever opens the link sees this code and its verdict.";
      await navigator.clipboard.writeText(page.href).catch(() => { said = page.href; });
      root.querySelector("output").textContent = said;
    });
    window.addEventListener("hashchange", fromAddress);
    form.hidden = false;
    if (!area.value) fill(examples[0]);
    fromAddress();
  };

  const start = () => document.querySelectorAll(".kl-paste").forEach(setUp);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
