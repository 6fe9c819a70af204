// Where inputs come from: a pad to draw on, sliders for the features of a table, and the test images.

// The pad shows a picture and changes its pixels; changed() is called after each change.
class Pad {
  constructor(canvas, status, data, changed) {
    Object.assign(this, { canvas, status, data, changed, cursor: [0, 0], last: null });
    const [, height, width] = data.shape;
    this.scale = Math.max(1, Math.ceil(320 / Math.max(height, width)));
    canvas.width = width * this.scale;
    canvas.height = height * this.scale;
    this.small = document.createElement("canvas");
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.last = this.position(event);
      this.stroke(this.last, this.last);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.last === null) return;
      const to = this.position(event);
      this.stroke(this.last, to);
      this.last = to;
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { this.last = null; });
    for (const kind of ["focus", "blur"]) canvas.addEventListener(kind, () => this.draw());
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  position(event) {
    const box = this.canvas.getBoundingClientRect();
    const [, height, width] = this.data.shape;
    return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
  }

  // Paint all pixels near the line from one point to another.
  stroke(from, to, pen = document.querySelector("input[name=pen]:checked").value) {
    const radius = Number(document.getElementById("brush").value);
    const steps = Math.max(1, Math.ceil(2 * Math.hypot(to[0] - from[0], to[1] - from[1])));
    for (let i = 0; i <= steps; i++) {
      this.dab(from.map((start, axis) => start + ((to[axis] - start) * i) / steps), radius, pen);
    }
    this.draw();
    this.changed();
  }

  dab([x, y], radius, pen) {
    const { shape, domain } = this.data;
    const [channels, height, width] = shape;
    // Only what the brush can reach.
    const near = (middle, size) => [Math.max(0, Math.floor(middle - radius - 1)), Math.min(size, Math.ceil(middle + radius + 1))];
    const [[left, right], [top, bottom]] = [near(x, width), near(y, height)];
    for (let row = top; row < bottom; row++) {
      for (let column = left; column < right; column++) {
        const cover = Math.min(1, radius + 0.5 - Math.hypot(column + 0.5 - x, row + 0.5 - y));
        if (!(cover > 0)) continue;
        const value = domain[0] + (domain[1] - domain[0]) * (pen === "paint" ? cover : 1 - cover);
        for (let channel = 0; channel < channels; channel++) {
          const i = (channel * height + row) * width + column;
          this.x[i] = pen === "paint" ? Math.max(this.x[i], value) : Math.min(this.x[i], value);
        }
      }
    }
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const pens = { " ": undefined, Enter: undefined, Backspace: "erase", Delete: "erase" };
    const [, height, width] = this.data.shape;
    if (event.key in moves) {
      const move = moves[event.key];
      this.cursor = [width, height].map((size, i) => Math.min(size - 1, Math.max(0, this.cursor[i] + move[i])));
      this.draw();
    } else if (event.key in pens) {
      const middle = this.cursor.map((i) => i + 0.5);
      this.stroke(middle, middle, pens[event.key]);
    } else return;
    event.preventDefault();
    const value = this.x[this.cursor[1] * width + this.cursor[0]];
    this.status.textContent = `column ${this.cursor[0] + 1}, row ${this.cursor[1] + 1}, value ${value.toFixed(2)}`;
  }

  show(x) {
    this.x = x;
    this.draw();
  }

  draw() {
    const context = this.canvas.getContext("2d");
    drawInput(this.small, this.x, this.data);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.small, 0, 0, this.canvas.width, this.canvas.height);
    // The cursor is for the keyboard.
    if (!this.canvas.matches(":focus-visible")) return;
    context.strokeStyle = "#e69f00";
    context.lineWidth = 3;
    context.strokeRect(this.cursor[0] * this.scale + 1.5, this.cursor[1] * this.scale + 1.5, this.scale - 3, this.scale - 3);
  }
}

// A slider for each feature of a table, in the reader's units.
class Sliders {
  constructor(parent, data, changed) {
    this.rows = data.features.map((feature, i) => {
      const label = makeElement("label", "feature");
      const value = makeElement("output");
      const slider = makeElement("input");
      Object.assign(slider, { type: "range", min: data.domain[0], max: data.domain[1], step: "any" });
      slider.disabled = feature.width === 0;
      label.append(makeElement("span", "", feature.name), slider, value);
      parent.append(label);
      slider.addEventListener("keydown", (event) => this.key(event, slider, data.domain));
      slider.addEventListener("input", () => {
        this.x[i] = Number(slider.value);
        this.write(i);
        changed();
      });
      return { slider, value, feature };
    });
  }

  // With step "any" the keys would move a slider by a step of their own: a hundredth of the range is of use.
  key(event, slider, domain) {
    const sign = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (!sign) return;
    event.preventDefault();
    slider.value = Number(slider.value) + (sign * (domain[1] - domain[0])) / 100;
    slider.dispatchEvent(new Event("input"));
  }

  write(i) {
    const { value, feature } = this.rows[i];
    value.textContent = String(Number((feature.centre + feature.width * this.x[i]).toPrecision(3)));
  }

  show(x) {
    this.x = x;
    this.rows.forEach(({ slider }, i) => {
      slider.value = x[i];
      this.write(i);
    });
  }
}

// The test images: a list box, one of them in the order of the tab key.
class Thumbs {
  constructor(parent, images, data, picked) {
    this.parent = parent;
    this.options = images.map((x, i) => {
      const option = makeElement("div", "thumb");
      option.setAttribute("role", "option");
      option.setAttribute("aria-label", `${data.picture ? "image" : "sample"} ${i + 1}, ${data.classes[data.y[i]]}`);
      option.title = data.classes[data.y[i]];
      const canvas = makeElement("canvas");
      drawInput(canvas, x, data);
      option.append(canvas);
      option.addEventListener("click", () => picked(i));
      parent.append(option);
      return option;
    });
    parent.addEventListener("keydown", (event) => this.key(event, picked));
    this.mark(null);
  }

  mark(chosen) {
    this.chosen = chosen;
    this.options.forEach((option, i) => {
      option.setAttribute("aria-selected", String(i === chosen));
      option.tabIndex = i === (chosen ?? 0) ? 0 : -1;
    });
  }

  key(event, picked) {
    const columns = getComputedStyle(this.parent).gridTemplateColumns.split(" ").length;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const at = this.options.indexOf(document.activeElement);
    const ends = { Home: 0, End: this.options.length - 1, " ": at, Enter: at };
    if (!(event.key in moves || event.key in ends)) return;
    event.preventDefault();
    const to = event.key in ends ? ends[event.key] : at + moves[event.key];
    if (!this.options[to]) return;
    picked(to);
    this.options[to].focus();
  }
}
