// Arrows on the triangle of policies over three tokens: drawn by the explorer and for a pasted loss.
// points [n][2] in the plane of corners (0,0), (1,0), (1/2, sqrt(3)/2); every series has steps [n][2].
// Returns a function that draws on top lines ({role, points}), arrows ({role, from, to}) and dots ({role, point}),
// of the roles whose names are in moving, in place of those that it drew before.
window.klSimplex = (element, { points, series, marks, corners, alt, moving = [] }) => {
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
  const arrow = (start, end, length) => {
    const [from, to] = [at(start), at(end)];
    const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
    const barb = Math.min(5, length * SIZE / 2) / Math.hypot(dx, dy);
    const wing = (s) => [to[0] - barb * (dx - s * 0.6 * dy), to[1] - barb * (dy + s * 0.6 * dx)];
    return `M${tidy(from)}L${tidy(to)}M${tidy(wing(1))}L${tidy(to)}L${tidy(wing(-1))}`;
  };
  for (const { role, steps } of series) {
    const longest = Math.max(...steps.map(([x, y]) => Math.hypot(x, y)), 1e-12);
    let path = "";
    points.forEach((point, i) => {
      const step = steps[i].map((v) => v / longest * LONGEST);
      const length = Math.hypot(...step);
      if (!(length > 2e-3)) return;
      path += arrow(point, [point[0] + step[0], point[1] + step[1]], length);
    });
    svg.append(made("path", { d: path, class: `kl-arrows kl-${role}` }));
  }
  for (const { role, point } of marks) {
    const [cx, cy] = at(point);
    svg.append(role === "end" ? made("rect", { x: cx - 5, y: cy - 5, width: 10, height: 10, class: `kl-mark kl-${role}` })
      : made("circle", { cx, cy, r: 6, class: `kl-mark kl-${role}` }));
  }
  const legend = document.createElement("ul");
  legend.className = "kl-legend";
  for (const { role, said } of [...series, ...marks, ...moving]) {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = `kl-swatch kl-${role}`;
    item.append(swatch, document.createElement("span"));
    item.lastChild.textContent = said;
    legend.append(item);
  }
  element.replaceChildren(svg, legend);
  const layer = svg.appendChild(made("g", {}));
  return ({ lines, arrows, dots }) => {
    const along = (way) => `M${way.map((point) => tidy(at(point))).join("L")}`;
    layer.replaceChildren(
      ...lines.map(({ role, points: way }) => made("path", { d: along(way), class: `kl-way kl-${role}` })),
      ...arrows.flatMap(({ role, from, to }) => {
        const length = Math.hypot(to[0] - from[0], to[1] - from[1]);
        return length > 2e-3 ? [made("path", { d: arrow(from, to, length), class: `kl-way kl-long kl-${role}` })] : [];
      }),
      ...dots.map(({ role, point: [x, y] }) => made("circle", { cx: at([x, y])[0], cy: at([x, y])[1], r: 5.5, class: `kl-dot kl-${role}` })),
    );
  };
};
