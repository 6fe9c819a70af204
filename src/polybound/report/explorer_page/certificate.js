// The first stage of `polybound certify` in float64, never above it.
//
// Over a box x = c + r u, u in [-1, 1]^d, every margin is g(u) >= g0 - sum |G| - R. R bounds all of second order and
// above: with t_n = A_n (r u) and B_n the derivative of what factor n is multiplied by,
//   R = sum_n bound of sum_m (|lambda_n| + ell_n)_m |t_nm| |(B_n r u)_m|,
// where lambda_n is the margin's derivative by the n-th product at the centre, and ell_n how far it moves in the box.

const ULP = 2 ** -52;

// sum_m weight_m |t_m s_m| where |t_m s_m| <= product_m and ||t|| ||s|| <= norms: any theta >= 0 gives a bound,
// theta norms + sum max(0, weight - theta) product, and the best theta is one of the weights.
function splitSum(weight, product, norms) {
  const order = Array.from(weight.keys()).sort((i, j) => weight[j] - weight[i]);
  let theta = 0;
  let passed = 0;
  for (const m of order) {
    passed += product[m];
    if (passed >= norms) { theta = weight[m]; break; }
  }
  let total = theta * norms;
  for (let m = 0; m < weight.length; m++) total += Math.max(0, weight[m] - theta) * product[m];
  return total;
}

// What all rivals share: factors at the centre, their radii and norms, and the summands of B_n r u.
class Box {
  constructor(network, x, eps, domain) {
    const edge = Math.max(Math.abs(domain[0]), Math.abs(domain[1]));
    // Wider than the ball by more than all roundings of its sides.
    const reach = eps * (1 + 2 ** -40) + edge * 2 ** -45;
    const c = new Float64Array(x.length);
    const r = new Float64Array(x.length);
    for (let d = 0; d < x.length; d++) {
      const lower = Math.max(domain[0], x[d] - reach);
      const upper = Math.min(domain[1], x[d] + reach);
      c[d] = (lower + upper) / 2;
      r[d] = ((upper - lower) / 2) * (1 + 2 ** -40) + edge * 2 ** -48;
    }
    this.network = network;
    this.r = r;
    Object.assign(this, network.factors(c));
    this.size = this.h.map((h) => h.map(Math.abs));
    this.rho = network.A.apply(r, null, true);
    this.norm = network.stretch.map((mu) => {
      let sum = 0;
      for (let d = 0; d < r.length; d++) sum += mu[d] * r[d] * r[d];
      return Math.sqrt(sum);
    });
    this.terms = [[]];
    for (let n = 1; n < network.degree; n++) this.terms.push(this.nextTerms(n));
  }

  nextTerms(n) {
    const { network, size, rho, norm, q } = this;
    let terms = this.terms[n - 1].map((t) => ({ ...t, scale: times(t.scale, size[n - 1]) }));
    terms.push({ scale: q[n - 1].map(Math.abs), radius: rho[n - 1], norm: norm[n - 1] });
    const step = network.S[n - 1];
    if (!step) return terms;
    const inner = new Float64Array(step.inputs);
    let norms = 0;
    for (const t of terms) {
      for (let m = 0; m < inner.length; m++) inner[m] += t.scale[m] * t.radius[m];
      norms += Math.max(...t.scale) * t.norm;
    }
    const radius = step.apply(inner, null, true);
    return [{ scale: radius.map(() => 1), radius, norm: norms * network.norms[n - 1] }];
  }

  // A proven lower bound of f_label - f_rival over the box.
  lower(label, rival) {
    const { network, h, q, rho, size, r } = this;
    const { W, b, inputs } = network.C;
    let lambda = new Float64Array(inputs);
    for (let m = 0; m < inputs; m++) lambda[m] = W[label * inputs + m] - W[rival * inputs + m];
    let ell = new Float64Array(inputs);
    const last = network.degree - 1;
    let g0 = b[label] - b[rival];
    for (let m = 0; m < inputs; m++) g0 += lambda[m] * h[last][m] * q[last][m];
    const slopes = [];
    let total = 0;
    for (let n = last; n >= 0; n--) {
      slopes[n] = times(lambda, q[n]);
      const weight = lambda.map((value, m) => Math.abs(value) + ell[m]);
      for (const term of this.terms[n]) {
        total += splitSum(times(weight, term.scale), times(rho[n], term.radius), this.norm[n] * term.norm);
      }
      if (n === 0) break;
      const wider = ell.map((value, m) => value * (size[n][m] + rho[n][m]) + Math.abs(lambda[m]) * rho[n][m]);
      lambda = network.back(times(lambda, h[n]), n);
      ell = network.back(wider, n, true);
    }
    const gradient = network.A.adjoint(slopes);
    for (let d = 0; d < r.length; d++) total += Math.abs(gradient[d]) * r[d];
    // Four times what float64 can be off by over the whole domain, and 2^-24 of the terms: never above Python's.
    const slack = network.slack[label] + network.slack[rival];
    const off = 4 * slack + (Math.abs(g0) + total) * (16 * network.roundings * ULP + 2 ** -24);
    const bound = g0 - total - off;
    return Number.isNaN(bound) ? -Infinity : bound;
  }
}

// A point at which a falling function is positive, within 2^-10 of where it changes its sign; 0 if none was found.
// The rule is "Illinois": the zero of the chord between the last positive and the last negative point, where the value of
// an end that stays twice is halved.
function lastPositive(value, atZero, guess, width) {
  let [low, atLow, high, atHigh, at] = [0, atZero, Infinity, 0, guess];
  let side = 0;
  for (let step = 0; step < 40 && (high === Infinity || high - low > high / 1024); step++) {
    const found = value(at);
    if (found > 0) {
      [low, atLow] = [at, found];
      if (side > 0) atHigh /= 2;
      if (low >= width) break;
    } else {
      [high, atHigh] = [at, found];
      if (side < 0) atLow /= 2;
    }
    side = found > 0 ? 1 : -1;
    if (high === Infinity) {
      // Where the chord from 0 goes on to: behind the zero, as the function falls faster and faster.
      const further = atLow < atZero ? atZero / (atZero - atLow) : 4;
      at = Math.min(width, low * Math.max(1.01, Math.min(4, further)));
    } else {
      const share = Number.isFinite(atHigh) ? atLow / (atLow - atHigh) : 0.5;
      // Not so near to the ends that the next point would be one of them again.
      at = low + (high - low) * Math.min(0.98, Math.max(0.02, share));
    }
  }
  return low;
}

// The largest radius found whose box has all margins positive, and the rival that ends it; 0 if the image is misclassified.
// What is returned was proven against every rival, however it was found: `before`, a result for a similar image, is only
// a place to begin.
function firstRadius(network, x, label, domain, before = null) {
  const logits = network.logits(x);
  if (!(margin(logits, label) > 0)) return { radius: 0, rival: null };
  const rivals = Array.from(logits.keys()).filter((i) => i !== label).sort((i, j) => logits[j] - logits[i]);
  const width = domain[1] - domain[0];
  let worst = rivals.includes(before?.rival) ? before.rival : rivals[0];
  let radius = before?.radius > 0 ? before.radius : width / 64;
  for (let round = 0; round < rivals.length; round++) {
    const bound = (eps) => new Box(network, x, eps, domain).lower(label, worst);
    radius = lastPositive(bound, logits[label] - logits[worst], Math.min(radius, width), width);
    if (!(radius > 0)) break;
    const box = new Box(network, x, radius, domain);
    const fails = rivals.find((rival) => !(box.lower(label, rival) > 0));
    if (fails === undefined) return { radius, rival: worst };
    worst = fails;
  }
  return { radius: 0, rival: worst };
}

// margin / (2 L) with L the network's Lipschitz constant over the whole domain, rounded down.
function lipschitzRadius(network, x, label) {
  const logits = network.logits(x);
  let least = Infinity;
  logits.forEach((value, rival) => {
    if (rival !== label) {
      least = Math.min(least, logits[label] - value - 4 * (network.slack[label] + network.slack[rival]));
    }
  });
  const radius = (least / (2 * network.lipschitz)) * (1 - 2 ** -24);
  return radius > 0 ? radius : 0;
}
