// A polynomial network: y_1 = A_1(x) * s_1, y_n = A_n(x) * S_n(y_(n-1)), f = C(y_k). All sums are float64.

function decode(array) {
  const bytes = Uint8Array.from(atob(array.data), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const size = array.type === "f4" ? 4 : 8;
  const values = new Float64Array(bytes.length / size);
  // By DataView, as the bytes are little-endian on every machine.
  for (let i = 0; i < values.length; i++) {
    values[i] = size === 4 ? view.getFloat32(4 * i, true) : view.getFloat64(8 * i, true);
  }
  return values;
}

// W x, added to the start if there is one, with W of (rows, columns) row by row. Four rows at a time: each number of x is
// read once for all of them, and their sums do not wait for each other.
function multiply(W, rows, columns, x, start = null, absolute = false) {
  const y = new Float64Array(rows);
  if (start !== null) y.set(start);
  const size = absolute ? Math.abs : null;
  let m = 0;
  for (; m + 4 <= rows; m += 4) {
    let a = 0, b = 0, c = 0, e = 0;
    let i = m * columns, j = i + columns, k = j + columns, l = k + columns;
    if (size) {
      for (let d = 0; d < columns; d++) {
        const value = x[d];
        a += Math.abs(W[i++]) * value;
        b += Math.abs(W[j++]) * value;
        c += Math.abs(W[k++]) * value;
        e += Math.abs(W[l++]) * value;
      }
    } else {
      for (let d = 0; d < columns; d++) {
        const value = x[d];
        a += W[i++] * value;
        b += W[j++] * value;
        c += W[k++] * value;
        e += W[l++] * value;
      }
    }
    y[m] += a;
    y[m + 1] += b;
    y[m + 2] += c;
    y[m + 3] += e;
  }
  for (; m < rows; m++) {
    let sum = 0;
    for (let d = 0, i = m * columns; d < columns; d++, i++) sum += (size ? Math.abs(W[i]) : W[i]) * x[d];
    y[m] += sum;
  }
  return y;
}

function transposed(W, rows, columns) {
  const T = new Float64Array(W.length);
  for (let m = 0, i = 0; m < rows; m++) for (let d = 0; d < columns; d++, i++) T[d * rows + m] = W[i];
  return T;
}

class Affine {
  // x -> W x + b, with W of (outputs, inputs) row by row; its transpose is kept for gradients.
  constructor(W, b) {
    this.W = W;
    this.b = b;
    this.outputs = b.length;
    this.inputs = W.length / b.length;
    this.T = transposed(W, this.outputs, this.inputs);
  }

  static read(spec) {
    return new Affine(decode(spec.W), decode(spec.b));
  }

  apply(x, start = this.b, absolute = false) {
    return multiply(this.W, this.outputs, this.inputs, x, start, absolute);
  }

  adjoint(y, absolute = false) {
    return multiply(this.T, this.inputs, this.outputs, y, null, absolute);
  }
}

// The maps of all factors below each other, as one: one pass over x for all of them.
class Factors {
  constructor(specs) {
    const maps = specs.map((spec) => [decode(spec.W), decode(spec.b)]);
    this.ends = [0];
    for (const [, b] of maps) this.ends.push(this.ends[this.ends.length - 1] + b.length);
    const join = (parts) => {
      const all = new Float64Array(parts.reduce((sum, part) => sum + part.length, 0));
      let at = 0;
      for (const part of parts) { all.set(part, at); at += part.length; }
      return all;
    };
    this.all = new Affine(join(maps.map(([W]) => W)), join(maps.map(([, b]) => b)));
  }

  split(y) {
    return this.ends.slice(1).map((end, n) => y.subarray(this.ends[n], end));
  }

  // A_n x + b_n for all n; with start null and absolute, |A_n| x.
  apply(x, start, absolute) {
    return this.split(this.all.apply(x, start, absolute));
  }

  // The sum of all A_n' y_n.
  adjoint(ys) {
    const joined = new Float64Array(this.all.outputs);
    ys.forEach((y, n) => joined.set(y, this.ends[n]));
    return this.all.adjoint(joined);
  }
}

function times(a, b) {
  const product = new Float64Array(a.length);
  for (let i = 0; i < a.length; i++) product[i] = a[i] * b[i];
  return product;
}

class Network {
  constructor(spec) {
    this.name = spec.name;
    this.note = spec.note;
    this.A = new Factors(spec.A);
    this.S = spec.S.map((step) => step && Affine.read(step));
    this.C = Affine.read(spec.C);
    this.s1 = decode(spec.s1);
    this.stretch = spec.stretch.map(decode);
    this.norms = decode(spec.norms);
    this.slack = decode(spec.slack);
    this.roundings = spec.roundings;
    this.lipschitz = decode(spec.lipschitz)[0];
    this.degree = spec.A.length;
    this.classes = this.C.outputs;
    this.proven = { certified: decode(spec.certified), attacked: decode(spec.attacked) };
  }

  // The factors h_n = A_n(x) + b_n, and what each is multiplied by, q_n.
  factors(x) {
    // Always of one type, so that the products are compiled for it.
    const h = this.A.apply(x instanceof Float64Array ? x : new Float64Array(x));
    const q = [this.s1];
    for (let n = 1; n < this.degree; n++) {
      const y = times(h[n - 1], q[n - 1]);
      q.push(this.S[n - 1] ? this.S[n - 1].apply(y) : y);
    }
    return { h, q };
  }

  logits(x) {
    const { h, q } = this.factors(x);
    return this.C.apply(times(h[this.degree - 1], q[this.degree - 1]));
  }

  // The gradient of slopes.f in closed form: every factor's map, weighted by the product of the other factors.
  gradient(x, slopesOf) {
    const { h, q } = this.factors(x);
    const last = this.degree - 1;
    const logits = this.C.apply(times(h[last], q[last]));
    let lambda = this.C.adjoint(slopesOf(logits));
    const weights = [];
    for (let n = last; n >= 0; n--) {
      weights[n] = times(lambda, q[n]);
      if (n > 0) lambda = this.back(times(lambda, h[n]), n);
    }
    return this.A.adjoint(weights);
  }

  back(y, n, absolute = false) {
    const step = this.S[n - 1];
    return step ? step.adjoint(y, absolute) : y;
  }
}

function softmax(logits) {
  const top = Math.max(...logits);
  const powers = logits.map((value) => Math.exp(value - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((value) => value / sum);
}

const argmax = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);

// f_label - the largest other logit.
function margin(logits, label) {
  let rival = -Infinity;
  logits.forEach((value, i) => { if (i !== label) rival = Math.max(rival, value); });
  return logits[label] - rival;
}
