// The term's gradient from every policy of three arms: the figure that the page of pasted losses shows, too.
// Returns what draws a policy in training into it (simplex.js), or null where there is no triangle.
(() => {
  "use strict";
  const PARTS = 12;  // policies of the grid have probabilities in multiples of a twelfth
  const CORNERS = [[0, 0], [1, 0], [0.5, Math.sqrt(3) / 2]];
  const inPlane = (p) => [0, 1].map((axis) => p.reduce((sum, v, j) => sum + v * CORNERS[j][axis], 0));

  const grid = [];
  for (let a = 1; a < PARTS - 1; a += 1) for (let b = 1; b < PARTS - a; b += 1) grid.push([a, b, PARTS - a - b].map((n) => n / PARTS));

  // What a small step against a gradient by logits does to the probabilities.
  const step = (p, g) => {
    const mean = window.klArms.dot(p, g);
    return inPlane(p.map((v, j) => -v * (g[j] - mean)));
  };

  window.klField = (root, state, x, entry) => {
    const figure = root.querySelector('[data-plot="field"]');
    figure.hidden = state.world !== "arms" || state.p.length !== 3;
    if (figure.hidden) return null;
    const { world, gradient, divergence } = window.klArms;
    const worlds = grid.map((p) => world(p.map(Math.log), state.q, state.off ? state.m : null));
    const steps = (of) => grid.map((p, i) => step(p, of(worlds[i])));
    const said = `${entry.label} in the ${state.place}`;
    const drawing = figure.querySelector("div");
    // as in the bars above
    drawing.style.setProperty("--kl-accent", entry.color);
    drawing.style.setProperty("--kl-warm", window.klFormulas.divergences.reverse_kl.color);
    return window.klSimplex(drawing, {
      points: grid.map(inPlane),
      series: [
        { role: "theirs", said: "reverse KL", steps: steps((w) => divergence("reverse_kl", w).gradient) },
        { role: "mine", said, steps: steps((w) => gradient(state, w)) },
      ],
      marks: [
        { role: "reference", said: "the reference", point: inPlane(x.reference) },
        ...(x.fixed.rests ? [{ role: "end", said: "where training with the reward ends", point: inPlane(x.fixed.policy) }] : []),
      ],
      moving: [{ role: "expected", said: "the policy (dot), expected updates (line)" }, { role: "sampled", said: "the policy, sampled steps" }],
      corners: ["arm 1", "arm 2", "arm 3"],
      alt: `Triangle of policies over three arms: arrows of ${said} beside those of the reverse KL.`,
    });
  };
})();
