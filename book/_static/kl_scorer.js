// How a search orders its results: chapters first, then the glossary, then lists and tables of everything.
// (var: the script that this stands in declares it once more)
var Scorer = {
  score: ([docname, , anchor, description, score]) => {
    if (docname.startsWith("book/part")) return score + 6;
    if (/^book\/(quickstart|intro)$/.test(docname)) return score + 5;
    if (docname === "book/glossary") return score + (description || anchor ? 3 : -6);
    if (docname.startsWith("book/experiments/")) return score - 3;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 3, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
