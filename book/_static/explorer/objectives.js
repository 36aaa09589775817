// Which objective is it? The expected gradient is compared with those of the named objectives in several fixed worlds.
window.klObjectives = (() => {
  "use strict";
  const { world, byLogits, divergence, gradient, likeliest, dot, norm } = window.klArms;
  const WORLDS = 8;
  const TOLERANCE = 1e-9;

  // In the audit's words, by the audit's names: an arm is a next token.
  const said = (name) => window.klFormulas.objectives[name];

  // Coefficients of the scores; each field is sum_j a_j s_j.
  const others = {
    token_squared_log_ratio: (w) => w.p.map((p, j) => p * (w.u[j] * w.u[j] / 2 - w.u[j])),
    token_entropy: (w) => w.p.map((p, j) => -p * w.lp[j]),
  };
  const sampled = {
    behavior_squared_log_ratio: (w) => w.m.map((m, j) => -m * w.u[j]),
    behavior_log_likelihood: (w) => w.m,
    behavior_reference_ratio: (w) => w.m.map((m, j) => -m * Math.exp(w.u[j])),
  };
  const mass = (w, scores, k) => w.p.map((p, j) => (likeliest(scores, k)[j] ? p : 0));

  const fields = (w, { off, k }) => {
    const found = {};
    for (const name of Object.keys(window.klFormulas.divergences)) found[`token_${name}`] = divergence(name, w).gradient;
    for (const [name, of] of Object.entries({ ...others, ...(off ? sampled : {}) })) found[name] = byLogits(of(w), w.p);
    if (k > 0 && k < w.p.length) {
      found[`token_top_${k}_mass`] = byLogits(mass(w, w.lp, k), w.p);
      found[`token_reference_top_${k}_mass`] = byLogits(mass(w, w.lq, k), w.p);
    }
    return found;
  };

  // Numbers between -1 and 1 that look random and are the same everywhere.
  const noise = (seed) => {
    let at = seed * 2654435761 % 4294967296;
    return () => {
      at = (at * 1664525 + 1013904223) % 4294967296;
      return at / 2147483648 - 1;
    };
  };

  const worlds = (arms, off) => Array.from({ length: WORLDS }, (_, i) => {
    const next = noise(i + 1);
    const draw = (size) => Array.from({ length: arms }, () => size * next());
    const [q, shift, other] = [draw(2), draw(1.5), draw(1)];
    const p = q.map((v, j) => v + shift[j]);
    return world(p, q, off ? p.map((v, j) => v + other[j]) : null);
  });

  // Least squares by modified Gram-Schmidt; null where the columns depend on one another.
  const solve = (columns, target) => {
    const basis = [];
    const upper = columns.map(() => []);
    for (const [j, column] of columns.entries()) {
      let rest = column.slice();
      for (let i = 0; i < j; i += 1) {
        const part = dot(basis[i], rest);
        upper[i][j] = part;
        rest = rest.map((v, n) => v - part * basis[i][n]);
      }
      const size = norm(rest);
      if (size < 1e-8) return null;
      upper[j][j] = size;
      basis.push(rest.map((v) => v / size));
    }
    let residual = target.slice();
    const along = basis.map((b) => {
      const part = dot(b, residual);
      residual = residual.map((v, n) => v - part * b[n]);
      return part;
    });
    const x = along.slice();
    for (let i = columns.length - 1; i >= 0; i -= 1) {
      for (let j = i + 1; j < columns.length; j += 1) x[i] -= upper[i][j] * x[j];
      x[i] /= upper[i][i];
    }
    return { x, residual: norm(residual) };
  };

  const choose = (n, size, start = 0) => (size === 0 ? [[]] : Array.from({ length: n - start }, (_, i) => i + start)
    .flatMap((first) => choose(n, size - 1, first + 1).map((rest) => [first, ...rest])));

  // The shortest sum of named objectives with the same expected gradient in every world, or none.
  const explain = (state, arms, most = 3) => {
    const several = worlds(arms, state.off);
    const each = several.map((w) => fields(w, state));
    const names = Object.keys(each[0]);
    const target = several.flatMap((w) => gradient(state, w));
    const size = norm(target);
    if (size < 1e-12) return { zero: true, terms: [], residual: 0 };
    const columns = names.map((name) => each.flatMap((f) => f[name]));
    const lengths = columns.map(norm);
    const unit = columns.map((c, i) => c.map((v) => v / lengths[i]));
    const aim = target.map((v) => v / size);
    let best = 1;
    for (let terms = 1; terms <= most; terms += 1) {
      for (const chosen of choose(names.length, terms)) {
        const found = solve(chosen.map((i) => unit[i]), aim);
        if (!found) continue;
        best = Math.min(best, found.residual);
        if (found.residual < TOLERANCE) {
          const sum = chosen.map((i, n) => ({ name: names[i], coefficient: found.x[n] * size / lengths[i] }));
          return { zero: false, terms: sum, residual: found.residual };
        }
      }
    }
    return { zero: false, terms: [], residual: best };
  };

  return { said, fields, explain };
})();
