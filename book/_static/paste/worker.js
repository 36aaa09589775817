// Python in a thread of its own: it loads when the first loss, log or cell arrives, and answers one after the other.
let ready = null;
const post = (message) => self.postMessage(message);

// Every file that is fetched counts towards the progress that the page shows.
const counted = () => {
  const plain = self.fetch.bind(self);
  let loaded = 0;
  self.fetch = async (...given) => {
    const response = await plain(...given);
    if (!response.body) return response;
    const counter = new TransformStream({
      transform(chunk, out) {
        loaded += chunk.byteLength;
        post({ loaded });
        out.enqueue(chunk);
      },
    });
    return new Response(response.body.pipeThrough(counter), response);
  };
};

const load = async (home, archive) => {
  counted();
  const [{ loadPyodide }, packed] = await Promise.all([
    import(`${home}pyodide.mjs`),
    fetch(archive).then((response) => {
      if (!response.ok) throw new Error(`${archive}: ${response.status}`);
      return response.arrayBuffer();
    }),
  ]);
  const python = await loadPyodide({ indexURL: home, stdout: () => {}, stderr: () => {} });
  python.unpackArchive(packed, "zip", { extractDir: "/kl" });
  python.runPython(`
import sys
sys.path.insert(0, "/kl")
from kl_book.paste.start import start
start()
`);
  return python;
};

self.onmessage = async ({ data: { home, archive, request, log } }) => {
  try {
    ready ??= load(home, archive);
    const python = await ready;
    // Imported before the first step, because the page waits only so long from one step to the next.
    const cell = request.before !== undefined;
    const module = log ? "log_answer" : cell ? "cell_answer" : "answer";
    const { answer, picture, log_answer, cell_answer } = python.pyimport(`kl_book.paste.${module}`);
    post({ step: "Reading it" });
    if (cell) {
      post({ answer: JSON.parse(cell_answer(JSON.stringify(request))), last: true });
      return;
    }
    if (log) {
      post({ answer: JSON.parse(log_answer(JSON.stringify(request), python.toPy(log))), last: true });
      return;
    }
    const answered = JSON.parse(answer(JSON.stringify(request), (step) => post({ step })));
    post({ answer: answered, last: Boolean(answered.error) });
    if (!answered.error) post({ picture: JSON.parse(picture()) });
  } catch (error) {
    ready = null;
    post({ failure: String(error.message || error).trim().split("\n").pop() });
  }
};
