// Figures that move. kl_book.moving computed every frame; this file shows one of them, and no more.
(() => {
  "use strict";
  const SECONDS = 8;  // from the first frame to the last
  const reduced = window.matchMedia("(prefers-reduced-motion: reduce)");
  const number = (x) => (x !== 0 && Math.abs(x) < 1e-3 ? x.toExponential(1) : x.toFixed(3)).replace("-", "−");

  const start = (stage) => {
    const { updates, unit, names, told, bars, lines, x, y } = JSON.parse(stage.dataset.frames);
    const last = updates.length - 1;
    const all = (selector) => [...stage.querySelectorAll(selector)];
    const [rects, dots] = [all(".kl-bar"), all(".kl-dot")];
    const pointsOf = (line) => [line, line.getAttribute("points").split(" ")];
    const [curves, ways, places] = [all(".kl-line").map(pointsOf), all(".kl-way").map(pointsOf), all(".kl-place")];

    const panel = document.createElement("div");
    panel.className = "kl-play";
    panel.innerHTML = '<button type="button">Play</button><label><span></span>'
      + `<input type="range" min="0" max="${last}" step="1" value="${last}"></label><p role="status" aria-live="polite"></p>`;
    const [button, slider, line] = ["button", "input", "p"].map((name) => panel.querySelector(name));
    panel.querySelector("span").textContent = unit;
    stage.append(panel);

    let at = last;
    let ticket = 0;
    const words = () => `${unit[0].toUpperCase()}${unit.slice(1)} ${updates[at]} of ${updates[last]}; ${told}: `
      + `${names.map((name, i) => `${name} ${number(lines[at][i])}`).join("; ")}.`;
    const show = (frame) => {
      at = Math.max(0, Math.min(last, frame));
      const width = x[1] - x[0];
      rects.forEach((rect, n) => {  // token by token, in each the series
        const [token, series] = [Math.floor(n / names.length), n % names.length];
        rect.setAttribute("width", bars[at][series][token] * width);
      });
      const right = x[0] + (updates[at] - updates[0]) / (updates[last] - updates[0]) * width;
      dots.forEach((dot, i) => {
        dot.setAttribute("cx", right);
        dot.setAttribute("cy", y[0] - (lines[at][i] - y[2]) / (y[3] - y[2]) * (y[0] - y[1]));
      });
      for (const [curve, points] of [...curves, ...ways]) curve.setAttribute("points", points.slice(0, at + 1).join(" "));
      ways.forEach(([, points], i) => {
        const [cx, cy] = points[at].split(",");
        places[i].setAttribute("cx", cx);
        places[i].setAttribute("cy", cy);
      });
      slider.value = at;
      slider.setAttribute("aria-valuetext", words());
      line.textContent = words();
    };

    const pause = () => {
      cancelAnimationFrame(ticket);
      ticket = 0;
      button.textContent = "Play";
      line.setAttribute("aria-live", "polite");
      show(at);
    };
    const play = () => {
      if (reduced.matches) { show(last); return; }
      const from = at === last ? 0 : at;
      let began = null;
      button.textContent = "Pause";
      line.setAttribute("aria-live", "off");  // nobody can listen to every frame
      const step = (now) => {
        began = began ?? now;
        show(from + Math.round((now - began) / 1000 * last / SECONDS));
        if (at === last) pause();
        else ticket = requestAnimationFrame(step);
      };
      ticket = requestAnimationFrame(step);
    };
    button.addEventListener("click", () => (ticket ? pause() : play()));
    slider.addEventListener("input", () => { const to = Number(slider.value); if (ticket) pause(); show(to); });
    window.addEventListener("beforeprint", () => { if (ticket) pause(); show(last); });
    show(last);
    stage.dataset.ready = "yes";
  };

  const begin = () => { for (const stage of document.querySelectorAll(".kl-stage[data-frames]")) start(stage); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
