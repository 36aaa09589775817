/* The decision guide: of all answers, the one that the form asks for. */
(() => {
  const start = () => {
    for (const guide of document.querySelectorAll(".kl-guide")) {
      const form = guide.querySelector("form");
      const answers = [...guide.querySelectorAll(".kl-answer")];
      const show = () => {
        const wanted = [...new FormData(form)].map(([name, value]) => `${name}-${value}`);
        for (const answer of answers) {
          answer.hidden = !wanted.every((condition) => answer.classList.contains(condition));
        }
      };
      for (const answer of answers) answer.setAttribute("aria-live", "polite");
      form.hidden = false;
      guide.classList.add("kl-asking");
      // some drivers, password managers and assistive software send only one of the two
      for (const kind of ["input", "change"]) form.addEventListener(kind, show);
      show();
    }
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
