// The four Bokeh figures of the explorer: filled from numbers, colored for the theme, described in words.
window.klPlots = async (root, data) => {
  "use strict";
  if (!window.Bokeh) return null;
  const models = {};
  for (const [name, item] of Object.entries(data.plots)) {
    const [view] = [...await window.Bokeh.embed.embed_item(item, `kl-plot-${name}`)];
    models[name] = view.model;
  }
  const OFFSET = 0.26;

  const fill = (name, role, columns) => {
    const renderer = models[name].renderers.find((r) => r.name === role);
    renderer.data_source.data = columns;
  };
  const bars = (name, role, at, values) => fill(name, role, { x: values.map((_, j) => j + 1 + at), top: values });
  const none = (name, role) => fill(name, role, { x: [], top: [], y: [] });
  const axis = (name, labels) => {
    const figure = models[name];
    figure.x_range.setv({ start: 0.5, end: labels.length + 0.5 });
    figure.below[0].major_label_overrides = new Map(labels.map((text, j) => [j + 1, text]));
  };
  const describe = (name, text) => root.querySelector(`#kl-plot-${name}`).setAttribute("aria-label", text);
  const place = (name, on) => { root.querySelector(`[data-plot="${name}"]`).hidden = !on; };
  const round = (x) => x.map((v) => v.toFixed(3)).join(", ");

  const themed = () => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--pst-color-text-base").trim() || "#333";
    const line = style.getPropertyValue("--kl-line").trim() || "#ccc";
    const font = getComputedStyle(document.body).fontFamily;
    for (const figure of Object.values(models)) {
      for (const one of [...figure.below, ...figure.left]) {
        one.setv({
          axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: ink, major_tick_line_color: ink,
          minor_tick_line_color: null, major_label_text_font: font, major_label_text_font_size: "13px",
        });
      }
      for (const grid of figure.center) if (grid.grid_line_color !== undefined && grid.dimension === 1) grid.grid_line_color = line;
    }
  };
  new MutationObserver(themed).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });

  const density = ([m, s], x) => Math.exp(-0.5 * ((x - m) / s) ** 2) / (s * Math.sqrt(2 * Math.PI));
  const densities = (state) => {
    const shown = { policy: state.gp, reference: state.gq, sampler: state.off ? state.gm : null };
    const all = Object.values(shown).filter(Boolean);
    const [low, high] = [Math.min(...all.map(([m, s]) => m - 3.5 * s)), Math.max(...all.map(([m, s]) => m + 3.5 * s))];
    const x = Array.from({ length: 241 }, (_, i) => low + (high - low) * i / 240);
    for (const [role, g] of Object.entries(shown)) fill("densities", role, g ? { x, y: x.map((v) => density(g, v)) } : { x: [], y: [] });
    describe("densities", `Densities: policy with mean ${state.gp[0]} and standard deviation ${state.gp[1]}, reference ${state.gq[0]} and ${state.gq[1]}.`);
  };

  const paint = (name, role, shade) => {
    const { glyph } = models[name].renderers.find((r) => r.name === role);
    glyph.setv({ fill_color: { value: shade }, line_color: { value: shade } });
    root.querySelector(`[data-plot="${name}"] [data-role="${role}"] .kl-swatch`).style.backgroundColor = shade;
  };
  const caption = (name, role, text) => { root.querySelector(`[data-plot="${name}"] [data-role="${role}"] span:last-child`).textContent = text; };

  const draw = (state, x, entry) => {
    const arms = state.world === "arms";
    place("arms", arms);
    place("densities", !arms);
    place("end", arms);
    for (const name of ["arms", "densities"]) root.querySelector(`[data-plot="${name}"] [data-role="sampler"]`).hidden = !state.off;
    const labels = arms ? state.p.map((_, j) => `arm ${j + 1}`) : ["mean", "log sd"];
    axis("push", labels);
    for (const [i, [role, g]] of Object.entries({ estimate: x.gradient, reverse: x.reverse.gradient, forward: x.forward.gradient }).entries()) {
      bars("push", role, (i - 1) * OFFSET, g.map((v) => (Number.isFinite(v) ? -v : 0)));
    }
    paint("push", "estimate", entry.color);
    caption("push", "estimate", `${entry.label} in the ${state.place}`);
    describe("push", `Minus the gradient by ${labels.join(", ")}. This term: ${round(x.gradient.map((v) => -v))}; reverse KL: ${round(x.reverse.gradient.map((v) => -v))}; forward KL: ${round(x.forward.gradient.map((v) => -v))}.`);
    if (!arms) return densities(state);
    axis("arms", labels);
    axis("end", labels);
    bars("arms", "policy", -OFFSET, x.policy);
    bars("arms", "reference", 0, x.reference);
    if (state.off) bars("arms", "sampler", OFFSET, x.sampler);
    else none("arms", "sampler");
    describe("arms", `Probabilities of ${labels.join(", ")}. Policy: ${round(x.policy)}; reference: ${round(x.reference)}${state.off ? `; sampler: ${round(x.sampler)}` : ""}.`);
    const ends = { estimate: x.fixed.policy, reverse: x.fixed.reverse, forward: x.fixed.forward, reference: x.reference };
    for (const [i, [role, p]] of Object.entries(ends).entries()) bars("end", role, (i - 1.5) * 0.2, p);
    paint("end", "estimate", entry.color);
    caption("end", "estimate", "this term");
    caption("end", "reverse", "optimum under reverse KL");
    caption("end", "forward", "optimum under forward KL");
    describe("end", `Probabilities at the end of training. This term: ${round(x.fixed.policy)}; optimum under reverse KL: ${round(x.fixed.reverse)}; under forward KL: ${round(x.fixed.forward)}; reference: ${round(x.reference)}.`);
    return undefined;
  };
  themed();
  return { draw };
};
