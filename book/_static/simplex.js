// Arrows on the triangle of policies over three tokens: drawn by the explorer and for a pasted loss.
// points [n][2] in the plane of corners (0,0), (1,0), (1/2, sqrt(3)/2); every series has steps [n][2].
window.klSimplex = (element, { points, series, marks, corners, alt }) => {
  const SPACE = "http://www.w3.org/2000/svg";
  const [SIZE, EDGE, LONGEST] = [300, 24, 1 / 9];
  const high = Math.sqrt(3) / 2;
  const at = ([x, y]) => [EDGE + x * SIZE, EDGE + (high - y) * SIZE];
  const made = (name, attributes, text) => {
    const node = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const tidy = (v) => v.map((x) => x.toFixed(2)).join(",");
  const svg = made("svg", { viewBox: `0 0 ${SIZE + 2 * EDGE} ${high * SIZE + 2 * EDGE}`, role: "img", "aria-label": alt, class: "kl-simplex" });
  svg.append(made("path", { d: `M${tidy(at([0, 0]))}L${tidy(at([1, 0]))}L${tidy(at([0.5, high]))}Z`, class: "kl-edge" }));
  for (const [i, place] of [[0, 0], [1, 0], [0.5, high]].entries()) {
    const [x, y] = at(place);
    svg.append(made("text", { x, y: i === 2 ? y - 8 : y + 18, "text-anchor": "middle" }, corners[i]));
  }
  for (const { role, steps } of series) {
    const longest = Math.max(...steps.map(([x, y]) => Math.hypot(x, y)), 1e-12);
    let path = "";
    points.forEach((point, i) => {
      const step = steps[i].map((v) => v / longest * LONGEST);
      const length = Math.hypot(...step);
      if (!(length > 2e-3)) return;
      const [from, to] = [at(point), at([point[0] + step[0], point[1] + step[1]])];
      const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
      const barb = Math.min(5, length * SIZE / 2) / Math.hypot(dx, dy);
      const wing = (s) => [to[0] - barb * (dx - s * 0.6 * dy), to[1] - barb * (dy + s * 0.6 * dx)];
      path += `M${tidy(from)}L${tidy(to)}M${tidy(wing(1))}L${tidy(to)}L${tidy(wing(-1))}`;
    });
    svg.append(made("path", { d: path, class: `kl-arrows kl-${role}` }));
  }
  for (const { role, point } of marks) {
    const [cx, cy] = at(point);
    svg.append(made("circle", { cx, cy, r: 4.5, class: `kl-mark kl-${role}` }));
  }
  const legend = document.createElement("ul");
  legend.className = "kl-legend";
  for (const { role, said } of [...series, ...marks]) {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = `kl-swatch kl-${role}`;
    item.append(swatch, document.createElement("span"));
    item.lastChild.textContent = said;
    legend.append(item);
  }
  element.replaceChildren(svg, legend);
};
