/* Where a server sends the page, the path to the wheel becomes its address; a page opened as a file keeps the path. */
(() => {
  if (!location.protocol.startsWith("http")) return;
  for (const place of document.querySelectorAll(".kl-wheel")) {
    const { path, extras } = place.dataset;
    const address = new URL(path, location.href);
    address.pathname = address.pathname.replace(/[^\w/.~%-]/g, (sign) => `%${sign.charCodeAt(0).toString(16)}`);
    place.textContent = extras ? `'kl-companion${extras} @ ${address}'` : `${address}`;
  }
  for (const note of document.querySelectorAll(".kl-install-note > span")) note.remove();
})();
