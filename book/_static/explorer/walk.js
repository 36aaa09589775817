// A policy of three arms in training: along the expected update, and by the update of one drawn arm at a time.
window.klWalk = (() => {
  "use strict";
  const [MOST, NEAR, SECONDS, LONGEST] = [1000, 1e-3, 6, 0.24];
  const { world, drawn, divergence, dot, norm, logSoftmax } = window.klArms;
  const { direction } = window.klFlow;
  const reduced = window.matchMedia("(prefers-reduced-motion: reduce)");
  const CORNERS = [[0, 0], [1, 0], [0.5, Math.sqrt(3) / 2]];
  const inPlane = (p) => [0, 1].map((axis) => dot(p, CORNERS.map((corner) => corner[axis])));
  const chances = (logits) => logSoftmax(logits).map(Math.exp);
  const moved = (logits, update, rate) => logSoftmax(logits.map((v, j) => v + rate * update[j]));

  // Logits after 0, 1, 2, ... expected updates, until the policy is where training ends, or after a thousand.
  const path = (state, rate, end) => {
    const found = [logSoftmax(state.p)];
    const there = (x) => end && chances(x).every((v, j) => Math.abs(v - end[j]) < NEAR);
    while (found.length <= MOST && !there(found.at(-1))) {
      found.push(moved(found.at(-1), direction(state, found.at(-1)), rate));
    }
    return found;
  };

  // The first number of the generator mulberry32 from a seed, in [0, 1).
  const uniform = (seed) => {
    let t = (seed + 0x6D2B79F5) | 0;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  // One draw from whoever samples, and its update: its reward over the mean one, minus beta times its gradient.
  const sampled = (state, logits, seed) => {
    const w = world(logits, state.q, state.off ? state.m : null);
    let left = uniform(seed);
    const hit = w.m.findIndex((p) => { left -= p; return left < 0; });
    const arm = hit < 0 ? w.m.length - 1 : hit;
    const gain = Math.exp(w.lp[arm] - w.lm[arm]) * (state.r[arm] - dot(w.p, state.r));
    const g = drawn(state, w, arm);
    return { arm, chance: w.m[arm], update: g.map((v, j) => gain * ((j === arm ? 1 : 0) - w.p[j]) - state.beta * v) };
  };

  const measured = (state, logits) => {
    const w = world(logits, state.q, null);
    return { reverse: divergence("reverse_kl", w).value, forward: divergence("forward_kl", w).value, reward: dot(w.p, state.r) };
  };

  const attach = (root, show) => {
    const box = root.querySelector(".kl-walk");
    const [play, restart, sample] = ["play", "restart", "sample"].map((name) => box.querySelector(`[data-walk="${name}"]`));
    const [slider, seed, rate] = ["step", "seed", "rate"].map((name) => box.querySelector(`[name="${name}"]`));
    const line = box.querySelector(".kl-trained");
    let [state, x, draw, expected, walked, arrows, at, ticket] = [null, null, null, [], [], [], 0, 0];

    const values = (logits) => {
      const found = measured(state, logits);
      return `reverse KL ${show(found.reverse)}, forward KL ${show(found.forward)}, expected reward ${show(found.reward)}`;
    };
    const tell = (text, live) => {  // nobody can listen to every frame, nor to what another control changed
      line.setAttribute("aria-live", live ? "polite" : "off");
      line.textContent = text;
    };
    const picture = () => {
      const way = (logits) => logits.map((one) => inPlane(chances(one)));
      const series = { expected: way(expected.slice(0, at + 1)), sampled: way(walked) };
      const shown = Object.entries(series).filter(([role, points]) => role === "expected" || points.length > 1);
      draw({
        lines: shown.map(([role, points]) => ({ role, points })),
        arrows,
        dots: shown.map(([role, points]) => ({ role, point: points.at(-1) })),
      });
    };
    const go = (to, live = true) => {
      at = Math.max(0, Math.min(expected.length - 1, to));
      slider.value = at;
      const text = `Step ${at} of ${expected.length - 1}: ${values(expected[at])}.`;
      slider.setAttribute("aria-valuetext", text);
      tell(text, live);
      picture();
    };
    const pause = () => { cancelAnimationFrame(ticket); ticket = 0; play.textContent = "Play"; };
    const begin = () => {
      pause();
      [walked, arrows] = [[logSoftmax(state.p)], []];
      expected = path(state, Number(rate.value), x.fixed.rests ? x.fixed.policy : null);
      slider.max = expected.length - 1;
      box.querySelector(".kl-value").textContent = Number(rate.value).toFixed(2);
    };
    const start = () => {
      const last = expected.length - 1;
      if (reduced.matches) { go(last); return; }
      const from = at === last ? 0 : at;
      let began = null;
      play.textContent = "Pause";
      const frame = (now) => {
        began = began ?? now;
        const to = Math.min(last, from + Math.ceil((now - began) / 1000 * last / SECONDS));
        if (to === last) pause();
        else ticket = requestAnimationFrame(frame);
        go(to, to === last);
      };
      ticket = requestAnimationFrame(frame);
    };
    const once = () => {
      pause();
      const number = Math.max(0, Math.floor(Number(seed.value))) || 0;
      const [from, size] = [walked.at(-1), Number(rate.value)];
      const { arm, chance, update } = sampled(state, from, number);
      const mean = direction(state, from);
      // what small steps would do to the probabilities; both arrows are longer by one factor
      const p = chances(from);
      const [ours, theirs] = [update, mean].map((d) => inPlane(p.map((v, j) => v * (d[j] - dot(p, d)))));
      const longer = LONGEST / Math.max(norm(ours), norm(theirs), 1e-12);
      const tip = (d) => inPlane(p).map((v, axis) => v + longer * d[axis]);
      arrows = [{ role: "expected", from: inPlane(p), to: tip(theirs) }, { role: "sampled", from: inPlane(p), to: tip(ours) }];
      walked.push(moved(from, update, size));
      seed.value = number + 1;
      const [a, b] = [norm(update), norm(mean)];
      const angle = Math.acos(Math.max(-1, Math.min(1, dot(update, mean) / (a * b)))) * 180 / Math.PI;
      const beside = b < 1e-12 ? "The expected update is zero." : a < 1e-12 ? "Its update is zero."
        : `Its update is ${show(a / b, 2)} times as long as the expected one and ${angle.toFixed(0)}° away from it.`;
      tell(`Sampled step ${walked.length - 1}: seed ${number} drew arm ${arm + 1}, probability ${show(chance, 3)}. ${beside} `
        + `Now ${values(walked.at(-1))}. Arrows: ${show(longer / size, 1)} times as long as the steps.`, true);
      picture();
    };
    play.addEventListener("click", () => { if (ticket) { pause(); go(at); } else start(); });
    restart.addEventListener("click", () => { begin(); go(0); });
    sample.addEventListener("click", once);
    slider.addEventListener("input", () => { const to = Number(slider.value); pause(); go(to); });
    rate.addEventListener("input", () => { begin(); go(0); });

    // A new setting: the policy is at the start again, and nothing moves before a click.
    return (next, numbers, drawing) => {
      [state, x, draw] = [next, numbers, drawing];
      box.hidden = !draw;
      pause();
      if (draw) { begin(); go(0, false); }
    };
  };
  return { path, uniform, sampled, measured, attach };
})();
