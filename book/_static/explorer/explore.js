// klExplore(state) -> numbers: all that the page shows, without a look at the page.
// state: world ("arms", "gauss"), p q m r (logits and rewards of arms), gp gq gm ([mean, sd]), est, place ("loss",
// "reward"), off (another policy samples), ratio ("none", "detached", "attached"), k, form, beta.
(() => {
  "use strict";
  const { world, moments, divergence, dot, norm } = window.klArms;

  const clean = (state) => {
    const entry = window.klFormulas.estimators[state.est];
    if (!entry) throw new Error(`unknown estimator ${state.est}`);
    const arms = state.world === "arms" ? state.p.length : 4;
    // a detached cost has no ratio to attach, and neither has a sum
    const loose = state.ratio === "attached" && (state.place === "reward" || entry.inputs !== "sampled");
    return { ...state, ratio: loose ? "detached" : state.ratio, k: entry.inputs === "top_k" ? Math.min(state.k, arms) : 0 };
  };

  const cosine = (a, b) => {
    const size = norm(a) * norm(b);
    return size > 0 && Number.isFinite(size) ? Math.max(-1, Math.min(1, dot(a, b) / size)) : NaN;
  };

  window.klExplore = (raw) => {
    const state = clean(raw);
    const arms = state.world === "arms";
    const w = arms ? world(state.p, state.q, state.off ? state.m : null) : null;
    const found = arms ? moments(state, w) : window.klGauss.moments(state);
    const truth = (name) => (arms ? divergence(name, w) : window.klGauss.divergence(name, found.g));
    const [reverse, forward] = [truth("reverse_kl"), truth("forward_kl")];
    const { target } = window.klFormulas.estimators[state.est];
    const targetValue = truth(target).value;
    const zero = norm(found.gradient) <= 1e-12 * Math.max(found.magnitude, 1e-300) || norm(found.gradient) < 1e-15;
    const objective = window.klObjectives.explain(state, arms ? state.p.length : 4);
    const numbers = {
      policy: arms ? w.p : null,
      reference: arms ? w.q : null,
      sampler: arms ? w.m : null,
      value: found.value,
      variance: found.variance,
      gradient: found.gradient,
      gradientVariance: found.gradientVariance,
      zero,
      reverse,
      forward,
      target,
      targetValue,
      bias: found.value - targetValue,
      cosine: zero ? null : { reverse: cosine(found.gradient, reverse.gradient), forward: cosine(found.gradient, forward.gradient) },
      objective,
      ratio: state.ratio,
      fixed: null,
    };
    if (arms) {
      numbers.fixed = {
        ...window.klFlow.flow(state),
        reverse: window.klFlow.reverseOptimum(state),
        forward: window.klFlow.forwardOptimum(state),
      };
    }
    return numbers;
  };
})();
