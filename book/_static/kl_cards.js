/* Cards beside terms, citations and functions: by pointer, by keyboard (focus, Escape) and by touch (a tap shows
   the card, a second one follows the link). The texts lie in the page as <template> elements. */
(() => {
  const LINKS = ".bd-article a:is(.kl-term, .kl-code, .kl-cite)";
  let card = null;
  let owner = null;
  let timer = 0;
  let tapped = null;

  const hide = () => {
    clearTimeout(timer);
    if (!owner) return;
    owner.removeAttribute("aria-describedby");
    card.remove();
    owner = card = null;
  };
  const place = () => {
    const words = owner.getClientRects()[0];
    const edge = document.documentElement.clientWidth - card.offsetWidth - 8;
    card.style.left = `${Math.max(8, Math.min(words.left, edge)) + scrollX}px`;
    const below = words.bottom + card.offsetHeight + 12 < innerHeight;
    card.style.top = `${(below ? words.bottom + 6 : words.top - card.offsetHeight - 6) + scrollY}px`;
  };
  const show = (link) => {
    if (link === owner) return clearTimeout(timer);
    hide();
    const text = document.querySelector(`template[data-for="${CSS.escape(link.getAttribute("href"))}"]`);
    if (!text) return;
    card = document.createElement("div");
    card.id = "kl-card";
    card.className = "kl-card";
    card.setAttribute("role", "tooltip");
    card.append(text.content.cloneNode(true));
    document.body.append(card);
    owner = link;
    owner.setAttribute("aria-describedby", card.id);
    place();
  };
  const later = (what, wait) => { clearTimeout(timer); timer = setTimeout(what, wait); };
  const linkAt = (event) => (event.target.closest ? event.target.closest(LINKS) : null);

  document.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse") return;
    const link = linkAt(event);
    if (link) later(() => show(link), link === owner ? 0 : 120);
    else if (card && card.contains(event.target)) clearTimeout(timer);
    else if (owner && document.activeElement !== owner) later(hide, 250);
    else if (!owner) clearTimeout(timer);
  });
  document.addEventListener("focusin", (event) => {
    const link = linkAt(event);
    if (link && link.matches(":focus-visible")) show(link);
  });
  document.addEventListener("focusout", (event) => { if (event.target === owner) hide(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("pointerdown", (event) => {
    const link = linkAt(event);
    tapped = event.pointerType === "touch" && link && link !== owner ? link : null;
    if (!link && card && !card.contains(event.target)) hide();
  });
  document.addEventListener("click", (event) => {
    const link = linkAt(event);
    if (!link || link !== tapped) return;
    event.preventDefault();
    tapped = null;
    show(link);
  });
  addEventListener("resize", () => { if (owner) place(); });
})();
