"""What the scheme grants and adds: secure moduli, and the variance of each random error in a slot.

A polynomial with random coefficients of variance v has slots of variance N v, and slots of one polynomial are
uncorrelated. All variances are of complex slots, in units of one over the scale; half of each is that of the real part.

- encryption: coefficients of standard deviation 3.2; encoding: rounding, 1/12;
- rescaling and the end of a key switch: both parts are rounded, `(1 + 2 N / 3) / 12` with a ternary secret;
- a key switch: digits below q_i times errors of the keys, divided by the special prime P: `N 3.2^2 sum q_i^2 / 3 P^2`;
  in few slots it is much larger (see `peaks`);
- what masks a reply: a fresh zero is rounded as a rescaled value is, and random slots as any encoded ones.

An estimate is seven standard deviations of a sum of these, weighted by what they are multiplied with on their way to
a logit. They are independent of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from polybound.errors import PolyboundError

RINGS = {8192: 218, 16384: 438, 32768: 881}
"""The largest modulus, in bits, that gives 128-bit security with ternary secrets (homomorphicencryption.org, 2018)."""

MARGIN = 0.15
"""Bits of room above every range: for the errors, and for primes being a little below their power of two."""

_SIGMA = 3.2


def check_modulus(ring: int, bits: Sequence[int]) -> None:
    """Refuse primes that no plan has, or that are not secure with a ring."""
    if ring not in RINGS:
        raise PolyboundError(f"ring must be one of {', '.join(map(str, RINGS))}, got {ring}")
    if len(bits) < 2 or not all(isinstance(b, int) and 20 <= b <= 60 for b in bits):
        raise PolyboundError(f"at least two primes of 20 to 60 bits are needed, got {list(bits)}")
    if sum(bits) > (most := RINGS[ring]):
        raise PolyboundError(
            f"a modulus of {sum(bits)} bits is not secure with ring {ring}: at most {most} bits give 128-bit security"
        )


def estimate(variances: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the estimated errors for these variances; double precision may add 1e-9."""
    return np.asarray(7.0 * np.sqrt(variances) + 1e-9)


def fresh_variance(ring: int) -> float:
    """Return the variance of a slot of a fresh ciphertext, encoding included."""
    return ring * (_SIGMA**2 + 1 / 12)


def rounding_variance(ring: int) -> float:
    """Return the variance of a slot after rescaling."""
    return ring * (1 + 2 * ring / 3) / 12


def switch_variance(ring: int, primes: Sequence[int], special: int) -> float:
    """Return the variance of a slot after a key switch (rotation, conjugation or relinearisation)."""
    digits = float(sum(4.0 ** (prime - special) for prime in primes))
    return ring * ring * _SIGMA**2 * digits / 3 + rounding_variance(ring)


def mask_variance(ring: int) -> float:
    """Return the variance that masking adds to a slot of a reply."""
    return rounding_variance(ring) + ring / 12


@lru_cache
def peaks(slots: int) -> npt.NDArray[np.float64]:
    """How much the error of a key switch is larger in a slot than in the mean of all: a ratio of variances.

    SEAL's digits lie between 0 and q_i, not around 0. Their mean adds `(1 + X + ... + X^(N-1)) e(X) q_i / 2` to the
    error, which at the root of unity z of a slot is `2 / (1 - z)` times e(z): large where z is near 1.
    """
    ring = 2 * slots
    exponents = np.array([pow(3, slot, 2 * ring) for slot in range(slots)])
    return 0.25 + 0.75 / (ring * np.sin(np.pi * exponents / (2 * ring)) ** 2)
