// The verdict on a loss, as elements of the page; what it says comes from Python, sentence by sentence.
window.klVerdict = (() => {
  "use strict";
  const made = (name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const clear = (box) => {
    box.replaceChildren();
    box.hidden = true;
    for (const name of Object.keys(box.dataset)) delete box.dataset[name];
  };

  const button = (text, act) => {
    const node = made("button", "", text);
    node.type = "button";
    node.addEventListener("click", act);
    return node;
  };

  const refused = (box, text, shown = text) => {
    clear(box);
    box.dataset.error = text;
    box.append(made("p", "kl-refused", shown));
    box.hidden = false;
  };

  // Of several functions one is chosen, by a button each.
  const several = (box, { error, names }, choose) => {
    refused(box, error);
    const list = made("p", "kl-choices");
    list.append(...names.map((name) => button(name, () => choose(name))));
    box.append(list);
  };

  // Of names that do not say what they are, the reader says what they mean.
  const unclear = (box, { error, unclear: unread }, choose) => {
    refused(box, error, unread.length > 1 ? "These names do not say what they are. What do they mean?" : "This name does not say what it is. What does it mean?");
    const list = made("div", "kl-asked");
    for (const { name, why, fitting, roles } of unread) {
      const select = made("select");
      select.name = name;
      if (fitting !== 1) select.append(made("option", "", "(choose)"));
      select.firstChild?.setAttribute("value", "");
      for (const [role, said] of roles) {
        const option = made("option", "", `${role}: ${said}`);
        option.value = role;
        select.append(option);
      }
      const label = made("label", "", `${name}: ${why}`);
      label.append(select);
      list.append(label);
    }
    const go = button("Go on", () => choose([...list.querySelectorAll("select")].filter((s) => s.value).map((s) => `${s.name}=${s.value}`).join(", ")));
    box.append(list, go);
  };

  const table = (rows) => {
    const whole = made("table", "table");
    whole.append(made("caption", "", "What it minimizes, by who drew the samples"));
    const body = made("tbody");
    for (const [where, what] of rows) {
      const row = made("tr");
      const head = made("th", "", where);
      head.scope = "row";
      row.append(head, made("td", "", what));
      body.append(row);
    }
    whole.append(body);
    return whole;
  };

  // Lines of a change: what goes is red, what comes is green, and both keep their signs.
  const remedy = (text) => {
    const block = made("div", "highlight");
    const lines = made("pre");
    lines.tabIndex = 0;
    for (const line of text.split("\n")) {
      const kind = line.startsWith("+ ") ? "kl-plus" : line.startsWith("- ") ? "kl-minus" : "";
      lines.append(kind ? made("span", kind, line) : line, "\n");
    }
    block.append(lines);
    const whole = made("div", "kl-remedy");
    whole.append(made("p", "", "Write instead:"), block);
    return whole;
  };

  const show = (box, { card, said }) => {
    clear(box);
    const head = made("p", "kl-minimizes", said.minimizes);
    box.append(head);
    if (said.as_meant) box.append(made("p", said.good ? "kl-good" : "kl-bad", said.as_meant));
    if (card.remedy) box.append(remedy(card.remedy));
    box.append(table(said.rows), made("figure", "kl-field"));
    for (const note of said.notes) box.append(made("p", "", note));
    box.append(made("p", "kl-small", `${said.certainty} ${said.read}`.trim()));
    box.dataset.headline = card.headline;
    box.dataset.level = card.level;
    box.dataset.card = JSON.stringify(card);
    box.hidden = false;
  };

  const picture = (box, found) => {
    const figure = box.querySelector(".kl-field");
    if (!figure) return;
    if (found.why_not) {
      figure.replaceWith(made("p", "kl-small", `${found.why_not} So there is no picture.`));
      return;
    }
    const { name } = JSON.parse(box.dataset.card);
    const drawing = made("div");
    figure.append(
      made("figcaption", "", "Where one step on the expected gradient takes a policy over three tokens"),
      drawing,
    );
    window.klSimplex(drawing, {
      points: found.points,
      series: [{ role: "theirs", said: found.meant, steps: found.theirs }, { role: "mine", said: name, steps: found.mine }],
      marks: [{ role: "reference", said: "the reference", point: found.reference }],
      corners: ["a", "b", "c"],
      alt: `Triangle of policies over three tokens: arrows of ${name} beside those of ${found.meant}.`,
    });
  };

  return { made, clear, refused, several, unclear, show, picture };
})();
