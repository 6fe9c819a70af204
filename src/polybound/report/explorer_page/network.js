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

class Affine {
  // x -> W x + b, with W of (outputs, inputs) row by row.
  constructor(spec) {
    this.W = decode(spec.W);
    this.b = decode(spec.b);
    this.outputs = this.b.length;
    this.inputs = this.W.length / this.outputs;
  }

  apply(x, from = this.b, absolute = false) {
    const { W, inputs, outputs } = this;
    const y = new Float64Array(outputs);
    for (let m = 0, i = 0; m < outputs; m++) {
      let sum = from === null ? 0 : from[m];
      if (absolute) for (let d = 0; d < inputs; d++, i++) sum += Math.abs(W[i]) * x[d];
      else for (let d = 0; d < inputs; d++, i++) sum += W[i] * x[d];
      y[m] = sum;
    }
    return y;
  }

  adjoint(y, into = new Float64Array(this.inputs), absolute = false) {
    const { W, inputs, outputs } = this;
    for (let m = 0, i = 0; m < outputs; m++) {
      const weight = y[m];
      if (absolute) for (let d = 0; d < inputs; d++, i++) into[d] += Math.abs(W[i]) * weight;
      else for (let d = 0; d < inputs; d++, i++) into[d] += W[i] * weight;
    }
    return into;
  }
}

const times = (a, b) => a.map((value, i) => value * b[i]);

class Network {
  constructor(spec) {
    this.name = spec.name;
    this.note = spec.note;
    this.A = spec.A.map((step) => new Affine(step));
    this.S = spec.S.map((step) => step && new Affine(step));
    this.C = new Affine(spec.C);
    this.s1 = decode(spec.s1);
    this.stretch = spec.stretch.map(decode);
    this.norms = decode(spec.norms);
    this.slack = decode(spec.slack);
    this.roundings = spec.roundings;
    this.lipschitz = decode(spec.lipschitz)[0];
    this.degree = this.A.length;
    this.classes = this.C.outputs;
    this.proven = { certified: decode(spec.certified), attacked: decode(spec.attacked) };
  }

  // The factors h_n = A_n(x) + b_n, and what each is multiplied by, q_n.
  factors(x) {
    const h = this.A.map((step) => step.apply(x));
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
    const gradient = new Float64Array(x.length);
    for (let n = last; n >= 0; n--) {
      this.A[n].adjoint(times(lambda, q[n]), gradient);
      if (n > 0) lambda = this.back(times(lambda, h[n]), n);
    }
    return gradient;
  }

  back(y, n, absolute = false) {
    const step = this.S[n - 1];
    return step ? step.adjoint(y, undefined, absolute) : y;
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
