/* Below each result of a search: the question that its page answers. No page is fetched for it. */
(() => {
  const base = new URL(".", document.baseURI).href;
  const questions = window.klQuestions || {};
  const note = () => {
    for (const link of document.querySelectorAll("#search-results li > a:first-child:not(.kl-noted)")) {
      link.classList.add("kl-noted");
      const page = link.href.split(/[?#]/)[0];
      const said = questions[decodeURIComponent(page.replace(base, "")).replace(/\.html$/, "")];
      if (said) link.insertAdjacentHTML("afterend", `<p class="kl-question">${said}</p>`);
    }
  };
  const start = () => {
    const results = document.getElementById("search-results");
    if (results) new MutationObserver(note).observe(results, { childList: true, subtree: true });
    note();
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
