// The explorer's page: form to state and back, state to link, numbers to words, table and plots.
(() => {
  "use strict";
  const LISTS = { p: "policy", q: "reference", m: "sampler", r: "reward" };
  const LETTERS = ["p", "q", "m", "r", "gp", "gq", "gm"];
  const WORDS = ["world", "est", "place", "ratio", "form"];
  const show = (x, digits = 4) => (x === null || Number.isNaN(x) ? "undefined" : !Number.isFinite(x) ? "infinite"
    : Math.abs(x) < 1e-12 ? "0" : Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5 ? x.toExponential(2).replace("-", "−")
      : x.toFixed(digits).replace("-", "−"));
  const degrees = (cosine) => (cosine === null || Number.isNaN(cosine) ? "none" : `${(Math.acos(cosine) * 180 / Math.PI).toFixed(1)}°`);

  const start = async (root) => {
    const form = root.querySelector("form");
    const find = (selector) => form.querySelector(selector);
    const data = JSON.parse(root.querySelector(".kl-data").textContent);
    const { estimators } = window.klFormulas;
    let state = structuredClone(data.plain);

    // -- state, form, link
    const entry = () => estimators[state.est];
    const fillMenu = () => {
      form.elements.est.replaceChildren();
      form.elements.est.dataset.world = state.world;
      const groups = { sampled: "From the sampled token", vocab: "From whole distributions", top_k: "Top-k part and sampled rest" };
      for (const [inputs, said] of Object.entries(groups)) {
        if (state.world === "gauss" && inputs === "top_k") continue;
        const group = document.createElement("optgroup");
        group.label = said;
        for (const [name, e] of Object.entries(estimators)) if (e.inputs === inputs) group.append(new Option(e.label, name));
        form.elements.est.append(group);
      }
    };
    const slider = (name, text, value, [low, high]) => {
      const label = document.createElement("label");
      label.innerHTML = `<span>${text} <span class="kl-value" aria-hidden="true"></span></span><input type="range" name="${name}" min="${low}" max="${high}" step="0.05">`;
      label.querySelector("input").value = value;
      return label;
    };
    const fillArms = () => {
      const box = find(".kl-each");
      box.replaceChildren(...state.p.map((_, j) => {
        const set = document.createElement("fieldset");
        set.className = "kl-sliders";
        set.innerHTML = `<legend>Arm ${j + 1}</legend>`;
        for (const key of Object.keys(LISTS)) {
          if (key === "m" && !state.off) continue;
          const label = slider(`${key}${j}`, key === "r" ? "reward" : `${LISTS[key]}, logit`, state[key][j], key === "r" ? [-2, 2] : [-12, 5]);
          set.append(label);
        }
        return set;
      }));
    };
    const said = (input, text) => {
      input.setAttribute("aria-valuetext", text);
      input.closest("label").querySelector(".kl-value").textContent = text;
    };
    const toForm = () => {
      const e = form.elements;
      if (e.est.dataset.world !== state.world) fillMenu();
      for (const name of ["est", "form", "ratio"]) e[name].value = state[name];
      for (const name of ["place", "world"]) e[name].value = state[name];
      e.off.value = state.off ? "yes" : "no";
      e.k.max = state.p.length;
      for (const name of ["k", "beta"]) e[name].value = state[name];
      e.n.value = state.p.length;
      for (const key of ["gp", "gq", "gm"]) for (const i of [0, 1]) e[`${key}${i}`].value = state[key][i];
      fillArms();
      limits();
    };
    const limits = () => {
      const headed = entry().inputs === "top_k";
      form.elements.k.max = state.p.length;
      find(".kl-head").hidden = !headed;
      find(".kl-arms").hidden = state.world !== "arms";
      find(".kl-gauss").hidden = state.world !== "gauss";
      find('[data-role="gm"]').hidden = !state.off;
      for (const option of form.elements.ratio.options) {
        option.disabled = option.value === "attached" && (state.place === "reward" || entry().inputs !== "sampled");
      }
    };
    // One control changed. The others may show less than the state holds: a slider rounds what a link gave.
    const changed = ({ name, value }) => {
      const next = structuredClone(state);
      const [, list, at] = name.match(/^([a-z]+)(\d)$/) || [];
      if (WORDS.includes(name)) next[name] = value;
      else if (name === "off") next.off = value === "yes";
      else if (name === "k" || name === "beta") next[name] = Number(value);
      else if (name === "n") {
        for (const key of Object.keys(LISTS)) next[key] = Array.from({ length: Number(value) }, (_, j) => state[key][j] ?? 0);
      } else if (list) next[list][Number(at)] = Number(value);
      return next;
    };
    const settle = (next) => {  // what does not go together gives way
      const fixed = { ...next };
      if (fixed.world === "gauss" && estimators[fixed.est].inputs === "top_k") fixed.est = "exact_kl";
      if (fixed.ratio === "attached" && (fixed.place === "reward" || estimators[fixed.est].inputs !== "sampled")) fixed.ratio = "detached";
      fixed.k = Math.min(fixed.k, fixed.p.length);
      return fixed;
    };
    const toLink = () => {
      const words = new URLSearchParams();
      for (const name of WORDS) words.set(name, state[name]);
      words.set("off", state.off ? "1" : "0");
      for (const name of ["k", "beta"]) words.set(name, state[name]);
      for (const name of LETTERS) words.set(name, state[name].join(","));
      return `#${words.toString().replaceAll("%2C", ",")}`;
    };
    const fromLink = (hash) => {
      const words = new URLSearchParams(hash.slice(1));
      if (!words.has("est")) return data.presets[words.get("preset")] || null;
      const next = structuredClone(data.plain);
      for (const name of WORDS) if (words.has(name)) next[name] = words.get(name);
      next.off = words.get("off") === "1";
      for (const name of ["k", "beta"]) if (words.has(name)) next[name] = Number(words.get(name));
      for (const name of LETTERS) if (words.has(name)) next[name] = words.get(name).split(",").map(Number);
      const lists = ["p", "q", "m", "r"].map((name) => next[name]);
      const finite = LETTERS.every((name) => next[name].every(Number.isFinite)) && next.beta > 0 && Number.isInteger(next.k) && next.k >= 0;
      const shaped = lists.every((x) => x.length === next.p.length) && next.p.length >= 2 && next.p.length <= 5
        && ["gp", "gq", "gm"].every((name) => next[name].length === 2 && next[name][1] > 0);
      const known = estimators[next.est] && ["arms", "gauss"].includes(next.world) && ["loss", "reward"].includes(next.place)
        && ["none", "detached", "attached"].includes(next.ratio) && ["bregman", "generic", "published"].includes(next.form);
      return finite && shaped && known ? next : null;
    };

    // -- words and numbers
    const combination = ({ terms }) => terms.map(({ name, coefficient: c }, i) => {
      const size = Math.abs(c);
      const factor = Math.abs(size - 1) < 1e-6 ? "" : `${Number(size.toPrecision(6))} × `;
      return `${c < 0 ? "minus " : i ? "plus " : ""}${factor}${window.klObjectives.said(name)}`;
    }).join(" ");
    const verdict = (x) => (x.objective.zero ? "zero"
      : x.objective.terms.length ? `that of ${combination(x.objective)}` : "that of no named objective, nor of a sum of up to three");
    const apart = (a, b) => Math.max(...a.map((v, j) => Math.abs(v - b[j])));
    const list = (words) => (words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words.join(""));
    const ending = ({ fixed }) => {
      const near = ["reverse", "forward"].filter((name) => apart(fixed.policy, fixed[name]) < 1e-5);
      const gone = fixed.gone.flatMap((g, j) => (g ? [j + 1] : []));
      const chances = fixed.policy.map((p, j) => (fixed.gone[j] ? "0" : show(p, 3))).join(", ");
      if (!fixed.rests) {
        return entry().inputs === "top_k" ? "Training does not come to rest: two arms keep changing places in the top-k part."
          : "Training does not come to rest in the time that is computed.";
      }
      if (gone.length) return `Training ends at the probabilities ${chances}: ${gone.length > 1 ? `arms ${list(gone)} are` : `arm ${gone[0]} is`} lost.`;
      return `Training ends at the probabilities ${chances}, which is ${near.length ? `the optimum under the ${near.join(" and under the ")} KL` : "the optimum under neither KL"}.`;
    };
    const summary = (x) => {
      const where = `${entry().label} in the ${state.place}, ${state.off ? "sampled from μ" : "sampled from the policy"}`
        + `${x.ratio === "none" ? "" : `, ratio ${x.ratio}`}`;
      const bias = Math.abs(x.bias) < 1e-9 ? "unbiased" : Number.isFinite(x.bias) ? `bias ${show(x.bias)}` : "bias undefined";
      const spread = x.variance === Infinity ? "the variance of one sample is infinite"
        : x.variance < 1e-24 ? "no noise" : `standard deviation of one sample ${show(Math.sqrt(x.variance))}`;
      const what = window.klFormulas.divergences[estimators[state.est].target].label;
      const angles = x.cosine ? ` The gradient is ${degrees(x.cosine.reverse)} away from that of the reverse KL and ${degrees(x.cosine.forward)} from that of the forward KL.` : "";
      return { where, verdict: verdict(x), rest: `Value: ${show(x.value)}, ${bias} for the ${what}; ${spread}.${angles}${x.fixed ? ` ${ending(x)}` : ""}` };
    };
    const table = (x) => {
      const length = (g) => Math.sqrt(g.reduce((a, b) => a + b * b, 0));
      const rows = [
        ["Expected value", show(x.value)], ["Reverse KL, KL(policy ‖ reference)", show(x.reverse.value)],
        ["Forward KL, KL(reference ‖ policy)", show(x.forward.value)], ["Bias, against the divergence it is named for", show(x.bias)],
        ["Variance of one sample", show(x.variance)], ["Standard deviation of one sample", show(Math.sqrt(x.variance))],
        ["Length of the expected gradient", show(length(x.gradient))],
        ["Variance of one sample's gradient", show(x.gradientVariance)],
        ["Angle to the gradient of the reverse KL", x.cosine ? degrees(x.cosine.reverse) : "no gradient"],
        ["Angle to the gradient of the forward KL", x.cosine ? degrees(x.cosine.forward) : "no gradient"],
      ];
      if (x.fixed) {
        const far = (name) => show(apart(x.fixed.policy, x.fixed[name]));
        rows.push(["Distance of the end of training from the reverse-KL optimum", far("reverse")], ["Distance of the end of training from the forward-KL optimum", far("forward")]);
      }
      find(".kl-numbers tbody").innerHTML = rows.map(([name, text]) => `<tr><th scope="row">${name}</th><td>${text}</td></tr>`).join("");
    };

    // -- drawing
    const train = window.klWalk.attach(root, show);
    const plots = window.klPlots ? await window.klPlots(root, data) : null;
    let last = null;
    const tell = () => {
      const e = form.elements;
      const chances = { p: last.policy, q: last.reference, m: last.sampler };
      for (const input of find(".kl-each").querySelectorAll("input")) {
        const [key, j] = [input.name[0], Number(input.name.slice(1))];
        said(input, key === "r" ? show(Number(input.value), 2) : `${show(Number(input.value), 2)}, probability ${last.policy ? show(chances[key][j], 3) : ""}`);
      }
      for (const name of ["k", "n", "beta", "gp0", "gp1", "gq0", "gq1", "gm0", "gm1"]) said(e[name], e[name].value.replace("-", "−"));
    };
    // What a preset shows is said while its setting is there: its sentence may not hold further away.
    const note = () => {
      const same = (other) => Object.keys(other).every((key) => String(other[key]) === String(state[key]));
      const key = Object.keys(data.presets).find((name) => same(data.presets[name]));
      const line = find(".kl-note");
      line.hidden = !key;
      line.replaceChildren();
      if (!key) return;
      const [label, sentence] = data.notes[key];
      line.append(Object.assign(document.createElement("strong"), { textContent: `${label}.` }), ` ${sentence}`);
    };
    const render = () => {
      const started = performance.now();
      last = window.klExplore(state);
      const words = summary(last);
      const line = find(".kl-summary");
      line.innerHTML = `${words.where}. <strong>Its expected gradient is</strong> <span class="kl-verdict-words">${words.verdict}</span>. ${words.rest}`;
      table(last);
      tell();
      limits();
      note();
      if (plots) plots.draw(state, last, entry());
      train(state, last, window.klField(root, state, last, entry()));
      root.dataset.ready = "yes";
      root.dataset.ms = Math.round(performance.now() - started);
    };

    let waiting = 0;
    const soon = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(render); };
    const load = (next, { write }) => {
      state = settle(structuredClone(next));
      toForm();
      if (write) history.replaceState(null, "", toLink());
      render();
    };
    const answer = ({ target }) => {
      const next = settle(changed(target));
      if (JSON.stringify(next) === JSON.stringify(state)) return;  // the second of two events
      state = next;
      if (["off", "n", "world", "place", "est"].includes(target.name)) toForm();  // other controls come, go or give way
      history.replaceState(null, "", toLink());
      soon();
    };
    // some drivers, password managers and assistive software send only one of the two
    for (const kind of ["input", "change"]) form.addEventListener(kind, answer);
    form.addEventListener("submit", (event) => event.preventDefault());
    for (const button of document.querySelectorAll("[data-preset]")) {
      button.addEventListener("click", () => {
        load(data.presets[button.dataset.preset], { write: true });
        if (!root.contains(button)) root.scrollIntoView({ behavior: "smooth" });
      });
    }
    find("[data-copy]").addEventListener("click", async () => {
      const out = find(".kl-copy output");
      history.replaceState(null, "", toLink());
      try {
        await navigator.clipboard.writeText(location.href);
        out.textContent = "Copied.";
      } catch {
        out.textContent = "The address of this page now holds the setting.";
      }
    });
    window.addEventListener("hashchange", () => { const next = fromLink(location.hash); if (next) load(next, { write: false }); });
    form.hidden = false;
    root.querySelector(".kl-needs").hidden = true;
    load(fromLink(location.hash) || data.plain, { write: false });
    window.klExplorerState = () => structuredClone(state);
  };

  const begin = () => { for (const root of document.querySelectorAll(".kl-explorer")) start(root); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
