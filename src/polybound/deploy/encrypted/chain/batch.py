"""Batches: up to N / 2 images at once, one ciphertext a pixel, an image a slot. Plan, client and server.

There are no rotations. The factors' maps are multiplied in as whole numbers `round(2^v W)`, exactly, in float64: that
holds while the largest l1 norm of a row times a prime is below `2^53`. So the primes are small, and several are
dropped where that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product as combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from polybound.deploy.encrypted import noise
from polybound.deploy.encrypted.chain import polynomial as chains
from polybound.deploy.encrypted.chain.parameters import SMALL_RINGS, Gains, Parameters
from polybound.deploy.encrypted.chain.polynomial import Array, Polynomial, Ranges
from polybound.deploy.encrypted.client import SecretKey
from polybound.deploy.encrypted.engine import Engine
from polybound.deploy.encrypted.seal import Keys, Scheme, sealapi
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork

_PIXELS = 64  # at a time: what lies in memory as float64


@dataclass(frozen=True)
class BatchParameters(Parameters):
    """The parameters of batches of up to N / 2 images; the scale of the factors' maps is `2^v`, v a whole number.

    Attributes:
        drops: the number of primes that each level of the tree drops.
        domain: the smallest and the largest value of a pixel.
    """

    drops: tuple[int, ...]
    domain: tuple[float, float]

    def level(self, n: int) -> Array:
        scale = np.asarray(self.pixels + self.weights)
        for drop in self.drops[:n]:
            scale = 2 * scale - drop * self.bits[0]
        return scale


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """How a network is evaluated on a batch.

    Attributes:
        polynomial: the network, with the domain.
        ranges: proven bounds of all values over the domain.
        parameters: ring, moduli and scales.
        error: the estimate of the largest error of a logit over the domain.
    """

    polynomial: Polynomial = field(repr=False)
    ranges: Ranges = field(repr=False)
    parameters: BatchParameters
    error: float

    def error_at(self, images: Array) -> float:
        """The estimate for these images (images, features) alone."""
        ranges = chains.ranges_at(self.polynomial, np.asarray(images, dtype=np.float64))
        return _error(self.parameters, Gains.of(self.polynomial, ranges), ranges.logits)


def plan_batches(
    model: PolynomialNetwork | Polynomial, domain: tuple[float, float] = (-1.0, 1.0), tolerance: float = 1.0
) -> BatchPlan:
    """The fastest plan for batches whose error over the whole domain is within the tolerance.

    Args:
        model: a CCP of degree up to 8, or an NCP of degree 2.
        domain: the smallest and the largest value of a pixel.
        tolerance: the largest error of a logit that is accepted.

    Raises:
        PolyboundError: the model does not fit; the message says which value is too large.
    """
    polynomial = model if isinstance(model, Polynomial) else chains.read_polynomial(model, domain)
    ranges = chains.proven_ranges(polynomial)
    gains = Gains.of(polynomial, ranges)
    for ring in SMALL_RINGS:
        for primes in range(2, 9):
            found = [(_error(one, gains, ranges.logits), one) for one in _candidates(ring, primes, polynomial, ranges)]
            error, chosen = min(found, key=lambda one: one[0], default=(np.inf, None))
            if chosen is not None and error <= tolerance:
                return BatchPlan(polynomial, ranges, chosen, error)
    raise PolyboundError(
        f"the model does not fit an error of {tolerance:g} in batches: over the domain its factors reach "
        f"{ranges.factors.max():.3g}, a product {ranges.products.max():.3g} and a logit {ranges.logits.max():.3g}; "
        "smaller bounds of the row-l1 norms make them smaller"
    )


def _candidates(ring: int, primes: int, polynomial: Polynomial, ranges: Ranges) -> Iterator[BatchParameters]:
    """The parameters with this number of primes that have room for the ranges."""
    norm = float(np.abs(polynomial.W).sum(-1).max()) + 1e-9
    factors = np.log2(max(float(ranges.factors.max()), ranges.partial, 1.0))
    nodes = [np.log2(max(float(level.max()), 1.0)) for level in ranges.nodes[1:]]
    for bits in (28, 30, 31, 32):
        special = min(60, noise.RINGS[ring] - primes * bits)
        # Rounding may raise the l1 norm by half a unit for each pixel.
        weights = int(np.floor(np.log2(2.0 ** (53 - bits) - polynomial.features / 2) - np.log2(norm)))
        if special < bits or weights < 6:
            continue
        for drops in combinations((1, 2), repeat=len(nodes)):
            left = primes - sum(drops)
            if left < 1:
                continue
            final = left * bits - 1 - noise.MARGIN - np.log2(max(float(ranges.logits.max()), 1.0))
            for output in range(4, 28, 2):
                scale = final - output
                for drop in reversed(drops):
                    scale = (scale + drop * bits) / 2
                pixels, domain = float(scale - weights), (polynomial.low, polynomial.high)
                sizes = (bits,) * primes + (special,)
                found = BatchParameters(ring, sizes, pixels, weights, float(output), drops, domain)
                levels, spent = [float(found.level(n)) for n in range(len(drops) + 1)], 0
                room = 4 <= pixels <= 40 and pixels <= bits * primes - 4 and levels[-1] >= 4
                room = room and levels[0] + factors + noise.MARGIN < primes * bits - 1
                for level, drop, node in zip(levels, drops, nodes, strict=False):
                    room = room and 2 * level + node + noise.MARGIN < (primes - spent) * bits - 1 and level >= 4
                    spent += drop
                if room:
                    yield found


def _error(p: BatchParameters, gains: Gains, logits: Array) -> float:
    """The estimate of the largest error of a logit: the noise of `noise.py` without rotations."""
    ring, levels, left = p.ring, [p.level(n) for n in range(len(p.drops) + 1)], len(p.primes)
    total = gains.pixels * noise.fresh_variance(ring) * 4.0**-p.pixels
    # Weights and constants are rounded; so are the ones that fill up the tree, alike for all units.
    total = total + gains.factors * (gains.length**2 + 4.0**-p.pixels) / 12 * 4.0**-p.weights
    for n, drop in enumerate(p.drops, 1):
        switch = noise.switch_variance(ring, p.bits[:left], p.bits[-1])
        error = switch * 4.0 ** (-2 * levels[n - 1]) + 2 * noise.rounding_variance(ring) * 4.0 ** -levels[n]
        total = total + gains.levels[n - 1] * error + logits**2 / 12 * 4.0 ** -levels[n - 1]
        left -= drop
    total = total + gains.products / 12 * 4.0**-p.output + noise.mask_variance(ring) * 4.0 ** -(levels[-1] + p.output)
    return float(noise.estimate(total).max())


class BatchClient:
    """One secret key for batches.

    Args:
        parameters: the plan's parameters.
        features: pixels of an image.
    """

    def __init__(self, parameters: BatchParameters, features: int) -> None:
        self.parameters, self.features = parameters, features
        self._key = SecretKey(parameters.ring, parameters.bits, parameters.domain)
        scheme = self._key.scheme
        self._pixel = scheme.ciphertext(scheme.primes, 2.0**parameters.pixels, seeded=False)
        self._reply = scheme.ciphertext(scheme.primes - sum(parameters.drops), None, seeded=False)

    def keys(self) -> bytes:
        """The public keys that a server needs: for products, and to encrypt zeros."""
        return self._key.public_keys()

    def encrypt(self, images: Array, compressed: bool = False) -> list[bytes]:
        """The ciphertexts of all pixels of up to N / 2 images (images, features).

        Compressed they are a little more than half as large, and take twice the server's time.

        Raises:
            PolyboundError: the images have another shape, or values outside of the plan's domain.
        """
        images = np.asarray(images, dtype=np.float64)
        most = self.parameters.ring // 2
        if images.shape[1:] != (self.features,) or not 0 < len(images) <= most:
            raise PolyboundError(f"a batch must be 1 to {most} images of {self.features} pixels, got {images.shape}")
        scale = 2.0**self.parameters.pixels
        # Not seeded: the server works on the residues of both polynomials.
        found = [self._key.encrypt(pixel, scale, seeded=False) for pixel in self._key.pixels(images).T]
        return found if compressed else [self._pixel.read(content, "a pixel") for content in found]

    def decrypt(self, reply: list[bytes], images: int) -> Array:
        """The logits (images, classes) of a reply.

        Raises:
            PolyboundError: the reply is damaged, or of other parameters.
        """
        return np.array([self._key.decrypt(content, self._reply)[:images] for content in reply]).T


class BatchServer:
    """The network of a batch plan.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        p = plan.parameters
        self._scheme = scheme = Scheme(p.ring, p.bits)
        self._moduli = scheme.moduli
        self._key_forms = scheme.key_forms()
        self._pixel = scheme.ciphertext(scheme.primes, 2.0**p.pixels, seeded=False)
        self._factor = scheme.ciphertext(scheme.primes, 2.0**p.pixels * 2.0**p.weights, seeded=False)
        self._weights = np.rint(plan.polynomial.W.reshape(-1, plan.polynomial.features) * 2.0**p.weights)
        largest = np.abs(self._weights).sum(1).max() * max(self._moduli)
        if largest >= 2.0**53:
            raise PolyboundError("the weights are too large for exact products: the plan is of another network")

    def load_keys(self, content: bytes) -> Keys:
        """A client's keys: for products, and to encrypt zeros.

        Raises:
            PolyboundError: they are damaged, or of other parameters.
        """
        return self._scheme.load_keys(content, self._key_forms)

    def classify(self, request: list[bytes], keys: Keys) -> list[bytes]:
        """The encrypted logits, one ciphertext a class.

        Raises:
            PolyboundError: the request is not one of the plan's.
        """
        residues, polynomial, engine = self._residues(request), self.plan.polynomial, Engine(self._scheme, keys)
        rank = polynomial.rank
        try:
            units = [self._unit(residues[:, :, unit::rank], unit, engine) for unit in range(rank)]
            rows = zip(polynomial.C, polynomial.beta.tolist(), strict=True)
            return [self._scheme.to_bytes(self._logit(row, bias, units, engine)) for row, bias in rows]
        except (RuntimeError, ValueError) as error:
            # SEAL refuses results that would not be encrypted, which related ciphertexts can lead to.
            raise PolyboundError(f"the batch cannot be evaluated: {error}") from None

    def _residues(self, request: list[bytes]) -> npt.NDArray[np.int64]:
        """The residues of all factors' maps, without constants: (2, primes, degree * rank, ring)."""
        features = self.plan.polynomial.features
        if len(request) != features:
            raise PolyboundError(f"a batch has {features} ciphertexts, one a pixel; this one has {len(request)}")
        ring, primes = self.plan.parameters.ring, len(self._moduli)
        sums = np.zeros((2, primes, len(self._weights), ring))
        some = np.empty((2, primes, _PIXELS, ring))
        # Fresh memory for each of hundreds of ciphertexts would take longer than to fill it.
        scratch = bytearray(self._pixel.size + 1)
        for first in range(0, features, _PIXELS):
            chosen = request[first : first + _PIXELS]
            for j, content in enumerate(chosen):
                some[:, :, j] = self._pixel.residues(content, "the request", scratch)
            # Exact: the plan keeps the l1 norms of the weights times the moduli below 2^53.
            sums += self._weights[:, first : first + _PIXELS] @ some[:, :, : len(chosen)]
        return np.asarray(sums.astype(np.int64) % np.array(self._moduli)[:, None, None])

    def _unit(self, rows: npt.NDArray[np.int64], unit: int, engine: Engine) -> Any:
        """The product of the factors of one unit, from the residues of their maps.

        It is a tree; where a factor is missing, one stands for it.
        """
        scheme, left = self._scheme, self._scheme.primes
        nodes: list[Any] = []
        for i, constant in enumerate(self.plan.polynomial.b[:, unit]):
            content = self._factor.filled(rows[:, :, i].astype(np.uint64))
            nodes.append(engine.shift(scheme.load(sealapi.Ciphertext(), content, "a factor"), float(constant)))
        nodes += [None] * (len(chains.tree_groups(len(nodes))[0]) - len(nodes))
        for drop in self.plan.parameters.drops:
            half, left = len(nodes) // 2, left - drop
            for n, (one, other) in enumerate(zip(nodes[:half], nodes[half:], strict=True)):
                if other is None:
                    product = engine.times(one, scheme.plain(1.0, one.scale, one.parms_id()))
                else:
                    product = engine.product(one, other)
                nodes[n] = engine.rescaled(product, left)
            nodes = nodes[:half]
        return nodes[0]

    def _logit(self, row: Array, bias: float, units: list[Any], engine: Engine) -> Any:
        """One row of the output map on the units."""
        scale = 2.0**self.plan.parameters.output
        # A fresh zero under the client's key hides how the sum was computed.
        total = engine.nothing(self._scheme.primes - sum(self.plan.parameters.drops), units[0].scale * scale)
        for value, unit in zip(row.tolist(), units, strict=True):
            # SEAL refuses products with zero, which tell that they are.
            if abs(value) * scale >= 0.5:
                engine.add(total, engine.times(unit, self._scheme.plain(value, scale, unit.parms_id())))
        return engine.shift(total, bias)
