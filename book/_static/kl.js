/* A formula in a line of text that is wider than the page gets a box of its own to scroll in. */
(() => {
  const fit = () => {
    for (const formula of document.querySelectorAll('.bd-article mjx-container:not([display="true"])')) {
      formula.classList.remove("kl-scroll");
      const line = formula.closest("p, li, td, th, dd, dt, figcaption, section") || document.body;
      if (formula.getBoundingClientRect().width > line.clientWidth) formula.classList.add("kl-scroll");
    }
  };
  const ready = () => (window.MathJax && MathJax.startup && MathJax.startup.promise
    ? MathJax.startup.promise.then(fit)
    : undefined);
  window.addEventListener("load", ready);
  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(fit);
  });
})();
