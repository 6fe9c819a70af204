// FGSM and PGD inside of the ball and of the domain, up log((1 - p) / p) of the label's probability p.

const PGD_STEPS = 20;

// Derivatives of logsumexp_(j != y) z_j - z_y by the logits z.
const oddsSlopes = (label) => (logits) => {
  const rivals = Float64Array.from(logits);
  rivals[label] = -Infinity;
  const slopes = rivals.length > 1 ? softmax(rivals) : new Float64Array(1);
  slopes[label] = -1;
  return slopes;
};

function perturb(network, x, label, eps, domain, kind) {
  // Short of eps by a rounding of float32, so that the attacked image is inside as it is stored.
  const largest = x.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  const radius = Math.max(0, eps - 2 ** -22 * (largest + eps));
  if (kind === "none" || radius === 0) return Float32Array.from(x);
  const lower = Float64Array.from(x, (value) => Math.max(domain[0], value - radius));
  const upper = Float64Array.from(x, (value) => Math.min(domain[1], value + radius));
  const steps = kind === "fgsm" ? 1 : PGD_STEPS;
  const size = kind === "fgsm" ? eps : (2.5 * eps) / steps;
  const slopes = oddsSlopes(label);
  const z = Float64Array.from(x);
  for (let step = 0; step < steps; step++) {
    const gradient = network.gradient(z, slopes);
    let moved = false;
    for (let d = 0; d < z.length; d++) {
      const to = Math.min(upper[d], Math.max(lower[d], z[d] + size * Math.sign(gradient[d])));
      if (to !== z[d]) moved = true;
      z[d] = to;
    }
    // All at their ends, and the gradient leaves them there: every further step would do the same.
    if (!moved) break;
  }
  return Float32Array.from(z);
}
