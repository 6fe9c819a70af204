// The page: its state, and what is computed when it changes.

const content = JSON.parse(document.getElementById("content").textContent);
const data = content.data;
const networks = content.networks.map((spec) => new Network(spec));
const count = data.y.length;
const width = data.shape.reduce((a, b) => a * b, 1);
const images = (() => {
  const all = Float32Array.from(decode(data.x));
  return data.y.map((_, i) => all.slice(i * width, (i + 1) * width));
})();

const range = data.domain[1] - data.domain[0];
const epsMax = range / 4;
// chosen: the number of the test input that is shown as it is; null once it was changed.
const state = { x: images[0].slice(), origin: 0, chosen: 0, eps: range / 20, attack: "pgd" };
const byId = (id) => document.getElementById(id);

function judged(network, x, label) {
  const logits = network.logits(x);
  const best = argmax(logits);
  return { logits, best, probabilities: softmax(logits), margin: margin(logits, label) };
}

// Without a test input's label, the class asked about is the one that the network answers.
function compute(network, x, label, eps, attack) {
  const about = label ?? argmax(network.logits(x));
  const attacked = perturb(network, x, about, eps, data.domain, attack);
  return { label: about, attacked, clean: judged(network, x, about), after: judged(network, attacked, about) };
}

// before: the radii of the input before, if it is a similar one.
function radii(network, x, label, chosen, before = null) {
  const about = label ?? argmax(network.logits(x));
  const { certified, attacked } = network.proven;
  const found = firstRadius(network, x, about, data.domain, before && { radius: before.first, rival: before.rival });
  return {
    lipschitz: lipschitzRadius(network, x, about),
    first: found.radius,
    rival: found.rival,
    proven: chosen === null ? null : { certified: certified[chosen], attacked: attacked[chosen] },
  };
}

const cards = networks.map((network) => new Card(byId("networks"), network, data, epsMax));
let known = [];
let before = [];
let waiting = false;

function refresh() {
  waiting = false;
  const label = state.chosen === null ? null : data.y[state.chosen];
  cards.forEach((card, i) => {
    // Radii do not depend on eps or the attack.
    known[i] ??= radii(card.network, state.x, label, state.chosen, before[i]);
    card.show(state.x, compute(card.network, state.x, label, state.eps, state.attack), known[i], state);
  });
  document.documentElement.dataset.shown = String(Number(document.documentElement.dataset.shown || 0) + 1);
}

// Once a frame, however many events there are.
function later(inputChanged) {
  if (inputChanged && known.length) [before, known] = [known, []];
  if (!waiting) requestAnimationFrame(refresh);
  waiting = true;
}

const word = data.picture ? "image" : "sample";

function edited() {
  state.chosen = null;
  thumbs.mark(null);
  byId("chosen").textContent = `Your own ${word}: each network is asked about its own answer.`;
  later(true);
}

function pick(i) {
  Object.assign(state, { x: images[i].slice(), origin: i, chosen: i });
  thumbs.mark(i);
  editor.show(state.x);
  byId("chosen").textContent = `${word[0].toUpperCase()}${word.slice(1)} ${i + 1} of ${count}: “${data.classes[data.y[i]]}”`;
  later(true);
}

const editor = data.picture
  ? new Pad(byId("pad"), byId("pad-status"), data, edited)
  : new Sliders(byId("sliders"), data, edited);
const thumbs = new Thumbs(byId("thumbs"), images, data, pick);

function setWords() {
  const { title, notes, version } = content;
  document.title = title;
  byId("notes").append(...notes.map((note) => makeElement("p", "soft", note)));
  byId("facts").textContent =
    `polybound ${version}. Data: ${data.dataset}, values in [${data.domain[0]}, ${data.domain[1]}]. Nothing leaves this page.`;
  document.body.classList.toggle("table", !data.picture);
  if (data.picture) return;
  for (const entry of document.querySelectorAll(".entry")) entry.textContent = "feature";
  byId("input-title").textContent = "Set the features";
  byId("clear").textContent = "All to the middle";
  byId("choice-title").textContent = "Or pick a test sample";
  for (const id of ["pad", "tools", "pad-help"]) byId(id).remove();
}

function setControls() {
  const eps = byId("eps");
  Object.assign(eps, { min: 0, max: epsMax, step: epsMax / 100, value: state.eps });
  const showEps = () => { byId("eps-value").textContent = state.eps.toFixed(3); };
  eps.addEventListener("input", () => {
    state.eps = Number(eps.value);
    showEps();
    later(false);
  });
  showEps();
  byId("attacks").addEventListener("change", (event) => {
    state.attack = event.target.value;
    later(false);
  });
  byId("clear").addEventListener("click", () => {
    state.x.fill(data.picture ? data.domain[0] : (data.domain[0] + data.domain[1]) / 2);
    editor.show(state.x);
    edited();
  });
  byId("reset").addEventListener("click", () => pick(state.origin));
}

setWords();
setControls();
pick(0);
// For tests and the curious.
window.explorer = { networks, images, data, state, compute, radii, perturb, Box };
