// A choice between a few arms, enumerated: value, spread and expected gradient of an estimate, nothing sampled.
// Formulas come from window.klFormulas (kl_book.explorer.formulas); this file only sums them.
window.klArms = (() => {
  "use strict";
  const sum = (x) => x.reduce((a, b) => a + b, 0);
  const dot = (x, y) => x.reduce((a, b, i) => a + b * y[i], 0);
  const norm = (x) => Math.sqrt(dot(x, x));

  const logSoftmax = (x) => {
    const top = Math.max(...x);
    const log = top + Math.log(sum(x.map((v) => Math.exp(v - top))));
    return x.map((v) => v - log);
  };

  // Three policies as log-probs and probabilities, and u = log(reference/policy) of every arm.
  const world = (logits, refLogits, samplerLogits) => {
    const [lp, lq, lm] = [logits, refLogits, samplerLogits || logits].map(logSoftmax);
    return {
      lp, lq, lm, off: Boolean(samplerLogits),
      p: lp.map(Math.exp), q: lq.map(Math.exp), m: lm.map(Math.exp), u: lq.map((v, i) => v - lp[i]),
    };
  };

  // sum_j a_j s_j with s_j the gradient of log p_j by the logits: a - p sum(a).
  const byLogits = (a, p) => { const total = sum(a); return a.map((v, i) => v - p[i] * total); };

  // The k likeliest arms; the first of equals.
  const likeliest = (scores, k) => {
    const order = scores.map((_, i) => i).sort((i, j) => scores[j] - scores[i] || i - j);
    const head = scores.map(() => false);
    for (const i of order.slice(0, k)) head[i] = true;
    return head;
  };

  // An estimate as head (summed over arms), tail (of the drawn arm), and which arms are the head.
  const parts = (state, w) => {
    const entry = window.klFormulas.estimators[state.est];
    if (!entry) throw new Error(`unknown estimator ${state.est}`);
    const all = w.p.map(() => true);
    if (entry.inputs === "sampled") return { entry, head: null, tail: entry, inside: all.map(() => false) };
    if (entry.inputs === "vocab") return { entry, head: entry.head, tail: null, inside: all };
    const scores = entry.head_from === "reference" ? w.lq : w.lp;
    return { entry, ...entry.forms[state.form], inside: likeliest(scores, state.k) };
  };

  // What multiplies the score: of every draw (c, with its value x) and of what is summed exactly (a).
  const coefficients = (state, w) => {
    const { entry, head, tail, inside } = parts(state, w);
    const zero = w.p.map(() => 0);
    const over = (fn, on) => (fn ? w.u.map((u, j) => (on(j) ? fn.value.at(u) : 0)) : zero);
    const slopes = (fn, on) => (fn ? w.u.map((u, j) => (on(j) ? fn.weight.at(u) : 0)) : zero);
    const summed = dot(w.p, over(head, (j) => inside[j]));
    const v = over(tail, (j) => !inside[j]);
    const h = slopes(tail, (j) => !inside[j]);
    const rho = state.ratio === "none" ? zero.map(() => 1) : w.lp.map((v, j) => Math.exp(v - w.lm[j]));
    if (state.place === "reward") {  // the whole estimate is a detached cost
      return { summed, a: zero, x: v.map((t, j) => t * rho[j]), c: v.map((t, j) => (t + summed) * rho[j]) };
    }
    const attached = state.ratio === "attached" && entry.inputs === "sampled";
    return {
      summed,
      a: slopes(head, (j) => inside[j]).map((t, j) => t * w.p[j]),
      x: v.map((t, j) => t * rho[j]),
      c: h.map((t, j) => (t + (attached ? v[j] : 0)) * rho[j]),
    };
  };

  const gradient = (state, w) => {
    const { a, c } = coefficients(state, w);
    return byLogits(c.map((t, j) => t * w.m[j] + a[j]), w.p);
  };

  // Gradient of one draw: what is summed exactly, and of what is sampled the part of the arm that was drawn.
  const drawn = (state, w, arm) => {
    const { a, c } = coefficients(state, w);
    return byLogits(a.map((t, j) => t + (j === arm ? c[j] : 0)), w.p);
  };

  // Value and gradient of a divergence from its formula per unit of policy mass.
  const divergence = (name, w) => {
    const d = window.klFormulas.divergences[name];
    return {
      value: dot(w.p, w.u.map(d.value.at)),
      gradient: byLogits(w.p.map((p, j) => p * d.weight.at(w.u[j])), w.p),
    };
  };

  // Everything about one draw: moments of its value and of its gradient.
  const moments = (state, w) => {
    const { summed, a, x, c } = coefficients(state, w);
    const mean = dot(w.m, x);
    const drawn = byLogits(c.map((t, j) => t * w.m[j]), w.p);
    const square = sum(w.p.map((p) => p * p));
    const size = w.p.map((p) => 1 - 2 * p + square);  // squared length of the score of each arm
    const magnitude = sum(c.map((t, j) => Math.abs(t) * w.m[j] * Math.sqrt(size[j]))) + sum(a.map(Math.abs));
    return {
      value: summed + mean,
      variance: dot(w.m, x.map((t) => (t - mean) ** 2)),
      gradient: byLogits(c.map((t, j) => t * w.m[j] + a[j]), w.p),
      gradientVariance: Math.max(0, sum(c.map((t, j) => t * t * w.m[j] * size[j])) - dot(drawn, drawn)),
      magnitude,
    };
  };

  return { sum, dot, norm, logSoftmax, world, byLogits, likeliest, parts, gradient, drawn, divergence, moments };
})();
