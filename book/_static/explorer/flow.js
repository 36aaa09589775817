// Where training ends: gradient flow of the logits on reward - beta * estimate, and the two optima it is compared with.
window.klFlow = (() => {
  "use strict";
  const { world, gradient, dot, sum, logSoftmax } = window.klArms;
  const STEPS = 800;
  const REFUSED = 60;  // steps; a head that changes sides at every step refuses them all
  const GONE = 1e-9;

  // d logits/dt = gradient of the expected reward - beta * expected gradient of the estimate.
  const direction = (state, logits) => {
    const w = world(logits, state.q, state.off ? state.m : null);
    const g = gradient(state, w);
    const mean = dot(w.p, state.r);
    return w.p.map((p, j) => p * (state.r[j] - mean) - state.beta * g[j]);
  };

  const jacobian = (f, x, f0) => {
    const columns = x.map((_, j) => {
      const step = 1e-6;
      const ahead = x.slice();
      ahead[j] += step;
      const behind = x.slice();
      behind[j] -= step;
      const [fa, fb] = [f(ahead), f(behind)];
      return f0.map((_, i) => (fa[i] - fb[i]) / (2 * step));
    });
    return f0.map((_, i) => columns.map((c) => c[i]));
  };

  // Gaussian elimination with pivoting, for several right-hand sides one after the other.
  const factor = (matrix) => {
    const a = matrix.map((row) => row.slice());
    const order = a.map((_, i) => i);
    for (let k = 0; k < a.length; k += 1) {
      let best = k;
      for (let i = k + 1; i < a.length; i += 1) if (Math.abs(a[i][k]) > Math.abs(a[best][k])) best = i;
      [a[k], a[best]] = [a[best], a[k]];
      [order[k], order[best]] = [order[best], order[k]];
      for (let i = k + 1; i < a.length; i += 1) {
        a[i][k] /= a[k][k];
        for (let j = k + 1; j < a.length; j += 1) a[i][j] -= a[i][k] * a[k][j];
      }
    }
    return (b) => {
      const x = order.map((i) => b[i]);
      for (let i = 0; i < x.length; i += 1) for (let j = 0; j < i; j += 1) x[i] -= a[i][j] * x[j];
      for (let i = x.length - 1; i >= 0; i -= 1) {
        for (let j = i + 1; j < x.length; j += 1) x[i] -= a[i][j] * x[j];
        x[i] /= a[i][i];
      }
      return x;
    };
  };

  // A Rosenbrock pair of orders two and three, L-stable: arms that hardly move and arms that move fast in one run.
  const flow = (state) => {
    const d = 1 / (2 + Math.SQRT2);
    const e = 6 + Math.SQRT2;
    const f = (x) => direction(state, x);
    let x = logSoftmax(state.p);
    let f0 = f(x);
    let h = 0.1;
    let steps = 0;
    let refused = 0;
    // every arm rests, or has left for good; logits may go on together, so the rates are those of log p
    const still = () => {
      const p = logSoftmax(x).map(Math.exp);
      const mean = dot(p, f0);
      const left = p.map((v, j) => v < GONE && f0[j] < mean);
      const least = left.some(Boolean) ? 1e-8 : 1e-11;
      return f0.every((v, j) => left[j] || Math.abs(v - mean) < least * p[j]);
    };
    while (steps < STEPS && refused < REFUSED && h < 1e30 && !still()) {
      steps += 1;
      const J = jacobian(f, x, f0);
      const solve = factor(J.map((row, i) => row.map((v, j) => (i === j ? 1 : 0) - h * d * v)));
      const k1 = solve(f0);
      const f1 = f(x.map((v, i) => v + 0.5 * h * k1[i]));
      const half = solve(f1.map((v, i) => v - k1[i]));
      const k2 = half.map((v, i) => v + k1[i]);
      const next = x.map((v, i) => v + h * k2[i]);
      const f2 = f(next);
      const k3 = solve(f2.map((v, i) => v - e * (k2[i] - f1[i]) - 2 * (k1[i] - f0[i])));
      const error = Math.max(...k1.map((v, i) => Math.abs(h / 6 * (v - 2 * k2[i] + k3[i]))));
      const size = Math.max(...next.map((v, i) => Math.abs(v - x[i])));
      const good = Number.isFinite(error) && error < 1e-3 && size < 2;
      if (good) { x = logSoftmax(next); f0 = f(x); } else refused += 1;
      const factorOf = Math.min(0.8 * Math.cbrt(1e-3 / Math.max(error, 1e-12)), 2 / Math.max(size, 1e-12));
      h *= Number.isFinite(error) ? Math.min(5, Math.max(0.2, factorOf)) : 0.2;
    }
    const policy = logSoftmax(x).map(Math.exp);
    return { policy, rests: still(), gone: policy.map((p) => p < GONE), steps };
  };

  // argmax of E[r] - beta KL(policy || reference): reference * exp(r / beta).
  const reverseOptimum = ({ q, r, beta }) => logSoftmax(logSoftmax(q).map((v, j) => v + r[j] / beta)).map(Math.exp);

  // argmax of E[r] - beta KL(reference || policy): beta * reference / (z - r), with z above every reward.
  const forwardOptimum = ({ q, r, beta }) => {
    const lq = logSoftmax(q);
    const top = Math.max(...r);
    const at = (gap) => lq.map((v, j) => Math.exp(v) * beta / (gap + top - r[j]));
    let [low, high] = [Math.log(beta) - 60, Math.log(beta) + 1];  // of log(z - top)
    for (let i = 0; i < 200; i += 1) {
      const middle = (low + high) / 2;
      if (sum(at(Math.exp(middle))) > 1) low = middle; else high = middle;
    }
    const policy = at(Math.exp((low + high) / 2));
    const total = sum(policy);
    return policy.map((p) => p / total);
  };

  return { direction, flow, reverseOptimum, forwardOptimum };
})();
