// Python beside a form: a thread that loads on the first click, how far it is, and how it is stopped.
// Its words are `command` (what to run instead), `endless` (why it was stopped) and `working` (of a step);
// `hear` receives an answer, `late` what comes after it, `refuse` a sentence. Forms of one page share the thread.
window.klPython = (root, options) => {
  "use strict";
  const { command, endless, working, hear, late, refuse } = options;
  const MB = 1e6;
  const [bar, state] = [root.querySelector("progress"), root.querySelector(".kl-state")];
  const [submit, stop] = [root.querySelector("[type=submit]"), root.querySelector("[data-stop]")];
  const home = new URL(root.dataset.python, document.baseURI).href;
  const thread = (window.klThread ??= { worker: null, ready: false, user: null });
  let waiting = 0;

  const say = (text) => { state.textContent = text; };
  const rest = () => {
    clearTimeout(waiting);
    [bar.hidden, stop.hidden, submit.disabled] = [true, true, false];
    root.removeAttribute("aria-busy");
  };
  const end = (text) => {
    thread.worker?.terminate();
    [thread.worker, thread.ready] = [null, false];
    rest();
    say(text);
  };
  const patience = () => {  // from one sign of progress to the next
    const seconds = root.dataset.patience;
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      end("");
      refuse(`Stopped: nothing came for ${seconds} seconds. ${endless}`);
    }, 1000 * seconds);
  };
  const finish = () => {
    rest();
    say("");
  };

  const heard = ({ data }) => {
    if (data.loaded !== undefined && !thread.ready) {
      bar.value = Math.min(1, data.loaded / root.dataset.bytes);
      say(`Loading Python: ${(data.loaded / MB).toFixed(1)} of ${(root.dataset.bytes / MB).toFixed(1)} MB`);
    }
    if (data.step) {
      thread.ready = true;
      bar.removeAttribute("value");
      say(working(data.step));
      patience();
    }
    if (data.answer) {
      if (data.last) finish();
      else {
        say("Drawing");
        patience();
      }
      hear(data.answer);
    }
    if (data.picture) {
      finish();
      late(data.picture);
    }
    if (data.failure) {
      end("");
      refuse(`Python did not start: ${data.failure}. Reload the page, or run ${command} on your machine.`);
    }
  };

  // Whether Python can run here; if not, the page says why.
  const able = () => {
    if (location.protocol === "file:") refuse(`This page was opened as a file, and browsers let no file start Python. In the folder that holds index.html, run python -m http.server and open http://localhost:8000; or run ${command} on your machine.`);
    else if (root.dataset.bytes === "0") refuse(`This copy of the book was built without Python for the browser, because it could not be fetched. On your machine: ${command}.`);
    else return true;
    return false;
  };

  const busy = () => thread.worker && submit.disabled;
  const mine = { heard, busy, end };
  const ask = (request, log) => {
    if (thread.user !== mine && thread.user?.busy()) thread.user.end("Stopped: another cell runs.");
    thread.user = mine;
    if (!thread.worker) {
      thread.worker = new Worker(new URL(root.dataset.worker, document.baseURI), { type: "module" });
      thread.worker.onmessage = (event) => thread.user.heard(event);
      thread.worker.onerror = (event) => thread.user.heard({ data: { failure: event.message || "its file did not load" } });
    }
    [bar.hidden, stop.hidden, submit.disabled] = [false, false, true];
    root.setAttribute("aria-busy", "true");
    if (thread.ready) patience();
    else say("Loading Python");
    thread.worker.postMessage({ home, archive: new URL(root.dataset.archive, home).href, request, log });
  };

  stop.addEventListener("click", () => end("Stopped."));
  return { able, ask, end, busy };
};
