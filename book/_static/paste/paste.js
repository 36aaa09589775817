// Paste your loss: the form, the address, and the thread in which Python answers.
(() => {
  "use strict";
  const FIELDS = ["code", "name", "want", "map", "set"];
  const MB = 1e6;

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
    const [area, bar] = [form.elements.code, root.querySelector("progress")];
    const [state, verdict] = [root.querySelector(".kl-state"), root.querySelector(".kl-verdict-of-loss")];
    const [submit, stop] = [root.querySelector("[type=submit]"), root.querySelector("[data-stop]")];
    const home = new URL(root.dataset.python, document.baseURI).href;
    const examples = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    const own = root.dataset.page === "";  // on the page of its own, the address says what stands here
    const editor = window.klEditor.start(area);
    let [worker, waiting, ready] = [null, 0, false];

    const say = (text) => { state.textContent = text; };
    const rest = () => {
      clearTimeout(waiting);
      [bar.hidden, stop.hidden, submit.disabled] = [true, true, false];
      root.removeAttribute("aria-busy");
    };
    const end = (text) => {
      worker?.terminate();
      [worker, ready] = [null, false];
      rest();
      say(text);
    };
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
    const patience = () => {  // from one sign of progress to the next
      const seconds = root.dataset.patience;
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        end("");
        refuse(`Stopped: nothing came for ${seconds} seconds. A loop in it may never end; if it is only slow, kl-companion audit on your machine waits for it.`);
      }, 1000 * seconds);
    };

    const heard = ({ data }) => {
      if (data.loaded !== undefined && !ready) {
        bar.value = Math.min(1, data.loaded / root.dataset.bytes);
        say(`Loading Python: ${(data.loaded / MB).toFixed(1)} of ${(root.dataset.bytes / MB).toFixed(1)} MB`);
      }
      if (data.step) {
        ready = true;
        bar.removeAttribute("value");
        say(`Enumerating: ${data.step}`);
        patience();
      }
      if (data.answer?.error) {
        rest();
        say("");
        doubt(data.answer);
      } else if (data.answer) {
        say("Drawing");
        patience();
        window.klVerdict.show(verdict, data.answer);
      }
      if (data.picture) {
        rest();
        say("");
        window.klVerdict.picture(verdict, data.picture);
      }
      if (data.failure) {
        end("");
        refuse(`Python did not start: ${data.failure}. Reload the page, or run kl-companion audit on your machine.`);
      }
    };

    const asked = () => Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value]));
    const address = () => {
      const { code, ...others } = asked();
      const said = Object.entries(others).filter(([, value]) => value);
      return `#${new URLSearchParams([["code", encode(code)], ["run", "1"], ...said])}`;
    };

    const run = () => {
      window.klVerdict.clear(verdict);
      if (location.protocol === "file:") {
        refuse("This page was opened as a file, and browsers let no file start Python. In the folder that holds index.html, run python -m http.server and open http://localhost:8000; or run kl-companion audit on your machine.");
        return;
      }
      if (root.dataset.bytes === "0") {
        refuse("This copy of the book was built without Python for the browser, because it could not be fetched. On your machine: kl-companion audit.");
        return;
      }
      if (own) history.replaceState(null, "", address());
      if (!worker) {
        worker = new Worker(new URL(root.dataset.worker, document.baseURI), { type: "module" });
        worker.onmessage = heard;
        worker.onerror = (event) => heard({ data: { failure: event.message || "its file did not load" } });
      }
      [bar.hidden, stop.hidden, submit.disabled] = [false, false, true];
      root.setAttribute("aria-busy", "true");
      if (ready) patience();
      else say("Loading Python");
      worker.postMessage({ home, archive: new URL(root.dataset.archive, home).href, request: asked() });
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
      if (worker && submit.disabled) end("");
      if (given.get("run") === "1") run();
    };

    form.elements.example.addEventListener("change", ({ target }) => {
      if (target.value !== "") fill(examples[target.value]);
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!submit.disabled) run();
    });
    area.addEventListener("input", () => { form.elements.example.value = ""; });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    stop.addEventListener("click", () => end("Stopped."));
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
