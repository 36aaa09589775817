// A Gaussian policy and a Gaussian reference: closed forms for the two KLs, Gauss-Legendre quadrature for the rest.
// Parameters of the policy are (mean, log sd). Expectations that do not exist are Infinity, decided from the exponents.
window.klGauss = (() => {
  "use strict";
  const CLIP = 700;

  const legendre = (n) => Array.from({ length: n }, (_, i) => {
    let x = Math.cos(Math.PI * (i + 0.75) / (n + 0.5));
    let slope = 1;
    for (let step = 0; step < 50; step += 1) {
      let [before, now] = [1, x];
      for (let k = 2; k <= n; k += 1) [before, now] = [now, ((2 * k - 1) * x * now - (k - 1) * before) / k];
      slope = n * (x * now - before) / (x * x - 1);
      x -= now / slope;
    }
    return { x, w: 2 / ((1 - x * x) * slope * slope) };
  });
  const NODES = legendre(20);

  const logDensity = ([m, s], x) => -0.5 * ((x - m) / s) ** 2 - Math.log(s) - 0.5 * Math.log(2 * Math.PI);

  // u(x) = log(reference/policy) as a x^2 + b x + c.
  const quadratic = ({ p: [m, s], q: [mq, sq] }) => ({
    a: 0.5 / (s * s) - 0.5 / (sq * sq),
    b: mq / (sq * sq) - m / (s * s),
    c: 0.5 * (m / s) ** 2 - 0.5 * (mq / sq) ** 2 + Math.log(s / sq),
  });

  const roots = ({ a, b, c }) => {
    if (Math.abs(a) < 1e-14) return Math.abs(b) < 1e-14 ? [] : [-c / b];
    const under = b * b - 4 * a * c;
    if (under <= 0) return [];
    const t = -0.5 * (b + Math.sign(b || 1) * Math.sqrt(under));
    return t === 0 ? [0] : [t / a, c / t];
  };

  // sampler * ratio^r * exp(e u) is a Gaussian up to a factor; this is its (precision, precision * mean).
  const tilted = ({ p, m }, u, r, e) => {
    const [base, top] = [m, p].map(([mean, sd]) => [1 / (sd * sd), mean / (sd * sd)]);
    return [(1 - r) * base[0] + r * top[0] - 2 * e * u.a, (1 - r) * base[1] + r * top[1] + e * u.b];
  };

  // The integral of a term: fn^power (a formula) * ratio^r * factor(x) under the sampler.
  // A term that has growth of its own at both ends of u is bounded there after division by exp(growth u).
  const integral = (g, { fns, power, r, factor }) => {
    const u = quadratic(g);
    const ends = ["low", "high"].map((end, i) => ({
      end,
      exponent: power * (i ? Math.max : Math.min)(...fns.map((fn) => fn.growth[i])),
    }));
    const [low, high] = ends.map((e) => e.exponent);
    // u goes to +infinity at both ends of the line, or to -infinity, or to one at each
    const decisive = u.a > 1e-14 ? [high] : u.a < -1e-14 ? [low] : [0];
    if (decisive.some((e) => tilted(g, u, r, e)[0] <= 1e-12)) return Infinity;
    const cuts = new Set(roots(u));
    for (const e of new Set([low, 0, high])) {
      const [precision, top] = tilted(g, u, r, e);
      if (precision <= 0) continue;
      const [mean, sd] = [top / precision, 1 / Math.sqrt(precision)];
      for (let i = -12; i <= 12; i += 1) cuts.add(mean + i * sd);
    }
    const edges = [...cuts].sort((x, y) => x - y);
    let total = 0;
    for (let i = 0; i + 1 < edges.length; i += 1) {
      const [centre, half] = [(edges[i] + edges[i + 1]) / 2, (edges[i + 1] - edges[i]) / 2];
      if (half < 1e-12) continue;
      for (const { x: node, w } of NODES) {
        const x = centre + half * node;
        const at = (u.a * x + u.b) * x + u.c;
        const side = at > 0 ? 1 : 0;
        const clipped = Math.max(-CLIP, Math.min(CLIP, at));
        const exponent = ends[side].exponent / power;
        // every formula after division by the same exponential, then the power
        const bounded = fns.reduce((sum, fn) => {
          const own = fn.growth[side];
          return sum + fn[ends[side].end](clipped) * Math.exp((own - exponent) * clipped);
        }, 0);
        const log = logDensity(g.m, x) + r * (logDensity(g.p, x) - logDensity(g.m, x)) + exponent * power * at;
        total += half * w * Math.exp(log) * bounded ** power * factor(x);
      }
    }
    return total;
  };

  const one = () => 1;
  const scores = ([m, s]) => [(x) => (x - m) / (s * s), (x) => ((x - m) / s) ** 2 - 1];
  const squared = (p) => { const [a, b] = scores(p); return (x) => a(x) ** 2 + b(x) ** 2; };

  // Closed forms: value and gradient by (mean, log sd).
  const kl = {
    reverse_kl: ({ p: [m, s], q: [mq, sq] }) => ({
      value: Math.log(sq / s) + (s * s + (m - mq) ** 2) / (2 * sq * sq) - 0.5,
      gradient: [(m - mq) / (sq * sq), (s / sq) ** 2 - 1],
    }),
    forward_kl: ({ p: [m, s], q: [mq, sq] }) => ({
      value: Math.log(s / sq) + (sq * sq + (m - mq) ** 2) / (2 * s * s) - 0.5,
      gradient: [(m - mq) / (s * s), 1 - (sq * sq + (m - mq) ** 2) / (s * s)],
    }),
  };

  const divergence = (name, g) => {
    if (kl[name]) return kl[name](g);
    const d = window.klFormulas.divergences[name];
    const under = { ...g, m: g.p };
    const of = (fn, factor) => integral(under, { fns: [fn], power: 1, r: 0, factor });
    return { value: of(d.value, one), gradient: scores(g.p).map((s) => of(d.weight, s)) };
  };

  const moments = (state) => {
    const g = { p: state.gp, q: state.gq, m: state.off ? state.gm : state.gp };
    const entry = window.klFormulas.estimators[state.est];
    if (!entry || entry.inputs === "top_k") throw new Error(`no Gaussian form of the estimator ${state.est}`);
    const r = state.ratio === "none" ? 0 : 1;
    const score = scores(g.p);
    if (entry.inputs === "vocab") {
      const exact = divergence(entry.target, g);
      if (state.place === "loss") return { ...exact, variance: 0, gradientVariance: 0, magnitude: 1, g };
      const constant = { growth: [0, 0], low: () => exact.value, high: () => exact.value };
      const of = (power, factor) => integral(g, { fns: [constant], power, r: r * power, factor });
      const gradient = score.map((s) => of(1, s));
      const rest = of(2, squared(g.p)) - gradient[0] ** 2 - gradient[1] ** 2;
      return { value: exact.value, gradient, variance: 0, gradientVariance: Math.max(0, rest), magnitude: exact.value, g };
    }
    const attached = state.ratio === "attached" && state.place === "loss";
    const c = state.place === "reward" ? [entry.value] : attached ? [entry.value, entry.weight] : [entry.weight];
    const value = integral(g, { fns: [entry.value], power: 1, r, factor: one });
    const gradient = score.map((s) => integral(g, { fns: c, power: 1, r, factor: s }));
    const second = integral(g, { fns: [entry.value], power: 2, r: 2 * r, factor: one });
    const size = integral(g, { fns: c, power: 2, r: 2 * r, factor: squared(g.p) });
    return {
      value, gradient, g,
      variance: second === Infinity ? Infinity : Math.max(0, second - value * value),
      gradientVariance: size === Infinity ? Infinity : Math.max(0, size - gradient[0] ** 2 - gradient[1] ** 2),
      magnitude: Number.isFinite(size) ? Math.sqrt(size) : 1,
    };
  };

  return { moments, divergence };
})();
