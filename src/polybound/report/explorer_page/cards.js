// A card for each network: pictures, probabilities, margin, and the three certificates.

const number = (value) => (Math.abs(value) < 1e6 ? value.toFixed(3) : value.toExponential(2)).replace("-", "−");
const percent = (value) => `${(100 * value).toFixed(1)} %`;

// A radius with three decimals, or two digits if it is small: rounded down if it is proven, up if it is broken.
function radiusText(value, round = Math.floor) {
  if (!Number.isFinite(value) || value === 0) return value === 0 ? "0" : "any radius";
  const unit = 10 ** Math.min(-3, Math.floor(Math.log10(value)) - 1);
  const text = round(value / unit) * unit;
  return value < 1e-3 ? text.toExponential(1) : text.toFixed(3);
}

class Card {
  constructor(parent, network, data, epsMax) {
    Object.assign(this, { network, data, epsMax });
    const card = makeElement("article", "card");
    card.append(makeElement("h2", "", network.name), makeElement("p", "soft", network.note));
    this.verdict = makeElement("p", "verdict");
    this.verdict.setAttribute("role", "status");
    card.append(this.pictures(), this.verdict, this.probabilities(), this.certificates());
    parent.append(card);
  }

  pictures() {
    const row = makeElement("div", "pictures");
    [this.image, this.change, this.attacked] = ["Input", "Change", "Attacked"].map((title) => {
      const figure = makeElement("figure");
      const canvas = makeElement("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", title);
      figure.append(canvas, makeElement("figcaption", "", title));
      row.append(figure);
      return canvas;
    });
    return row;
  }

  probabilities() {
    const table = makeElement("table", "bars");
    const head = makeElement("tr");
    ["class", "probability", "clean", "attacked"].forEach((title) => head.append(makeElement("th", "", title)));
    table.setAttribute("aria-label", "Probabilities of the classes");
    table.append(head);
    this.bars = this.data.classes.map((name) => {
      const row = makeElement("tr");
      const label = makeElement("th", "", name);
      label.scope = "row";
      const cell = makeElement("td", "tracks");
      const [clean, attacked] = ["bar clean", "bar attacked"].map((kind) => makeElement("div", kind));
      cell.append(clean, attacked);
      const texts = [makeElement("td", "value"), makeElement("td", "value")];
      row.append(label, cell, ...texts);
      table.append(row);
      return { row, clean, attacked, texts };
    });
    const frame = makeElement("div", "frame");
    frame.append(table);
    return frame;
  }

  certificates() {
    const box = makeElement("div", "rulers");
    this.margin = makeElement("p", "margin");
    box.append(this.margin);
    const names = { lipschitz: "Lipschitz", first: "First order", proven: "polybound certify" };
    this.rulers = Object.fromEntries(Object.entries(names).map(([key, name]) => {
      const ruler = makeElement("div", `ruler ${key}`);
      const title = makeElement("div", "ruler-title");
      const text = makeElement("span", "ruler-text");
      const origin = key === "proven" ? "when this page was made" : "in this page, live";
      title.append(makeElement("b", "", name), makeElement("span", "soft", ` ${origin}`), text);
      const track = makeElement("div", "ruler-track");
      const [open, safe, mark] = ["open", "safe", "mark"].map((kind) => makeElement("div", kind));
      track.append(open, safe, mark);
      ruler.append(title, track);
      box.append(ruler);
      return [key, { text, open, safe, mark }];
    }));
    return box;
  }

  // result: what compute() of page.js returns; radii: of the unattacked input, the same object while it stays.
  show(x, result, radii, state) {
    const { data } = this;
    if (radii !== this.radii) drawInput(this.image, x, data);
    this.radii = radii;
    drawInput(this.attacked, result.attacked, data);
    drawChange(this.change, x, result.attacked, state.eps, data);
    this.bars.forEach((bar, i) => {
      bar.clean.style.width = `${100 * result.clean.probabilities[i]}%`;
      bar.attacked.style.width = state.attack === "none" ? "0" : `${100 * result.after.probabilities[i]}%`;
      bar.texts[0].textContent = percent(result.clean.probabilities[i]);
      bar.texts[1].textContent = state.attack === "none" ? "" : percent(result.after.probabilities[i]);
      bar.row.classList.toggle("label", i === result.label);
    });
    const after = state.attack === "none" ? "" : `, attacked ${number(result.after.margin)}`;
    this.margin.textContent = `Margin of “${data.classes[result.label]}”: ${number(result.clean.margin)}${after}`;
    this.showRadii(radii, state);
    this.showVerdict(result, radii, state);
  }

  showRadii({ lipschitz, first, proven }, { eps }) {
    const width = (radius) => `${(100 * Math.min(1, radius / this.epsMax)).toFixed(2)}%`;
    for (const [key, radius] of [["lipschitz", lipschitz], ["first", first], ["proven", proven && proven.certified]]) {
      const { text, open, safe, mark } = this.rulers[key];
      mark.style.left = width(eps);
      safe.style.width = width(radius ?? 0);
      open.style.width = width(key === "proven" && proven ? proven.attacked : 0);
      text.textContent = radius === null ? "only for the test inputs" : `safe to ${radiusText(radius)}`;
    }
    if (proven) {
      const { text } = this.rulers.proven;
      if (Number.isFinite(proven.attacked)) text.textContent += `, broken at ${radiusText(proven.attacked, Math.ceil)}`;
      else if (proven.certified < this.data.domain[1] - this.data.domain[0]) text.textContent += ", open above";
    }
  }

  showVerdict({ label, clean, after }, { lipschitz, first, proven }, { eps, attack }) {
    const name = (i) => `“${this.data.classes[i]}”`;
    const live = Math.max(lipschitz, first);
    const [kind, text] = clean.margin <= 0
      ? ["bad", `✗ Wrong before any attack: says ${name(clean.best)}, not ${name(label)}`]
      : after.margin <= 0
        ? ["bad", `✗ The attack works: ${name(label)} becomes ${name(after.best)}`]
        : live >= eps && live > 0
          ? ["good", `✓ ${name(label)}, proven in this page: no attack within eps works`]
          : proven && proven.certified >= eps && proven.certified > 0
            ? ["good", `✓ ${name(label)}, proven by polybound certify: no attack within eps works`]
            : proven && proven.attacked <= eps
              ? ["open", `• ${attack === "none" ? name(label) : "This attack fails"}, but polybound certify found one that works`]
              : ["open", `• ${attack === "none" ? name(label) : "This attack fails"}; nothing is proven at this eps`];
    this.verdict.className = `verdict ${kind}`;
    this.verdict.textContent = text;
  }
}
