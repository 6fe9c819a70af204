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

from polybound.deploy.encrypted.client import within
from polybound.deploy.encrypted.messages import Format, split
from polybound.deploy.encrypted.noise import (
    DEVIATIONS,
    MARGIN,
    MODULUS_BITS,
    Demand,
    fresh_variance,
    rounding_variance,
    switch_variance,
)
from polybound.deploy.encrypted.polynomial import (
    Array,
    Polynomial,
    Ranges,
    proven_ranges,
    ranges_at,
    read_polynomial,
    tree_groups,
    usual_ranges,
)
from polybound.deploy.encrypted.seal import Exchange, make_context, sealapi
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork

__all__ = ["BatchClient", "BatchParameters", "BatchPlan", "BatchServer", "plan_batches"]

_PIXELS = 64  # at a time: what lies in memory as float64


@dataclass(frozen=True)
class BatchParameters:
    """The parameters of a batch.

    Attributes:
        ring: dimension N; a batch has up to N / 2 images.
        bits: sizes of the primes in bits, the special prime last.
        pixels: binary logarithm of the pixels' scale.
        weights: v, of the scale of the factors' maps; a whole number.
        output: of the scale of the output map.
        drops: how many primes each level of the tree drops.
        domain: the smallest and the largest value of a pixel.
    """

    ring: int
    bits: tuple[int, ...]
    pixels: float
    weights: int
    output: float
    drops: tuple[int, ...]
    domain: tuple[float, float]

    @property
    def primes(self) -> int:
        """The number of data primes."""
        return len(self.bits) - 1

    def scales(self) -> list[float]:
        """The binary logarithms of the scales of all levels of the tree."""
        found = [self.pixels + self.weights]
        for drop in self.drops:
            found.append(2 * found[-1] - drop * self.bits[0])
        return found


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
        demand = Demand.of(self.polynomial, ranges_at(self.polynomial, np.asarray(images, dtype=np.float64)))
        return _error(self.parameters, demand)


def plan_batches(
    model: PolynomialNetwork | Polynomial, domain: tuple[float, float] = (-1.0, 1.0), tolerance: float = 1.0
) -> BatchPlan:
    """The fastest plan for batches whose error over the whole domain is within the tolerance.

    Args:
        model: a CCP of degree up to 8, or an NCP of degree 2.
        domain: the smallest and the largest value of a pixel.
        tolerance: the largest error of a logit that will do.

    Raises:
        PolyboundError: the model does not fit; the message says which value is too large.
    """
    polynomial = model if isinstance(model, Polynomial) else read_polynomial(model, domain)
    ranges = proven_ranges(polynomial)
    proven, usual = Demand.of(polynomial, ranges), Demand.of(polynomial, usual_ranges(polynomial))
    norm = float(np.abs(polynomial.W).sum(-1).max()) + 1e-9
    for ring in MODULUS_BITS:
        for primes in range(2, 9):
            found = _best(ring, primes, norm, polynomial, proven, usual, tolerance)
            if found is not None:
                return BatchPlan(polynomial, ranges, *found)
    raise PolyboundError(
        f"the model does not fit an error of {tolerance:g} in batches: over the domain its factors reach "
        f"{ranges.factors.max():.3g}, a product {ranges.products.max():.3g} and a logit {ranges.logits.max():.3g}; "
        "smaller bounds of the row-l1 norms make them smaller"
    )


def _best(
    ring: int, primes: int, norm: float, polynomial: Polynomial, proven: Demand, usual: Demand, tolerance: float
) -> tuple[BatchParameters, float] | None:
    """The parameters with this number of primes that do best on usual values, among those within the tolerance."""
    best: tuple[float, BatchParameters, float] | None = None
    for candidate in _candidates(ring, primes, norm, polynomial, proven.ranges):
        error = _error(candidate, proven)
        badness = error * _error(candidate, usual)
        if error <= tolerance and (best is None or badness < best[0]):
            best = badness, candidate, error
    return None if best is None else best[1:]


def _candidates(
    ring: int, primes: int, norm: float, polynomial: Polynomial, ranges: Ranges
) -> Iterator[BatchParameters]:
    domain = polynomial.low, polynomial.high
    depth = len(ranges.nodes) - 1
    for bits in (28, 30, 31, 32):
        special = min(60, MODULUS_BITS[ring] - primes * bits)
        # Rounding may raise the l1 norm by half a unit for each pixel.
        weights = int(np.floor(np.log2(2.0 ** (53 - bits) - polynomial.features / 2) - np.log2(norm)))
        if special < bits or weights < 6:
            continue
        for drops in combinations((1, 2), repeat=depth):
            left = primes - sum(drops)
            if left < 1:
                continue
            final = left * bits - 1 - MARGIN - np.log2(max(float(ranges.logits.max()), 1.0))
            for output in range(4, 28, 2):
                scale = final - output
                for drop in reversed(drops):
                    scale = (scale + drop * bits) / 2
                found = BatchParameters(
                    ring, (bits,) * primes + (special,), float(scale - weights), weights, float(output), drops, domain
                )
                if _has_room(found, ranges):
                    yield found


def _has_room(p: BatchParameters, ranges: Ranges) -> bool:
    if not 4 <= p.pixels <= 40 or p.pixels > p.bits[0] * p.primes - 4:
        return False
    before = np.log2(max(float(ranges.factors.max()), ranges.partial, 1.0))
    if p.scales()[0] + before + MARGIN >= p.primes * p.bits[0] - 1:
        return False
    left = p.primes
    for scale, drop, nodes in zip(p.scales(), p.drops, ranges.nodes[1:], strict=False):
        if 2 * scale + np.log2(max(float(nodes.max()), 1.0)) + MARGIN >= left * p.bits[0] - 1 or scale < 4:
            return False
        left -= drop
    return p.scales()[-1] >= 4


def _error(p: BatchParameters, demand: Demand) -> float:
    """The estimate of the largest error of a logit: the noise of `noise.py` without rotations."""
    gains, ring, levels = demand.gains, p.ring, p.scales()
    total = gains.pixels * fresh_variance(ring) * 4.0**-p.pixels
    total = total + gains.factors * demand.ranges.length**2 / 12 * 4.0**-p.weights
    left = p.primes
    for n, drop in enumerate(p.drops, 1):
        switch = switch_variance(ring, tuple(map(float, p.bits[:left])), float(p.bits[-1]))
        error = switch * 4.0 ** (-2 * levels[n - 1]) + 2 * rounding_variance(ring) * 4.0 ** -levels[n]
        total = total + gains.levels[n - 1] * error
        left -= drop
    total = total + gains.products / 12 * 4.0**-p.output
    return float(DEVIATIONS * np.sqrt(total).max())


class BatchClient:
    """One secret key for batches.

    Args:
        parameters: the plan's parameters.
        features: pixels of an image.
    """

    def __init__(self, parameters: BatchParameters, features: int) -> None:
        self.parameters, self.features = parameters, features
        self._context = make_context(parameters.ring, parameters.bits)
        self._generator = sealapi.KeyGenerator(self._context)
        self._encryptor = sealapi.Encryptor(self._context, self._generator.secret_key())
        self._decryptor = sealapi.Decryptor(self._context, self._generator.secret_key())
        self._encoder = sealapi.CKKSEncoder(self._context)
        self._exchange = Exchange()
        form = Format(self._context, self._exchange)
        self._pixel = form.ciphertext(form.primes, 2.0**parameters.pixels, seeded=False)
        self._reply = form.ciphertext(form.primes - sum(parameters.drops), None, seeded=False)

    def keys(self) -> bytes:
        """The public keys that a server needs: for products, and to encrypt zeros."""
        public = sealapi.PublicKey()
        self._generator.create_public_key(public)
        return b"".join([self._exchange.to_bytes(key) for key in (self._generator.create_relin_keys(), public)])

    def encrypt(self, images: Array, compressed: bool = False) -> list[bytes]:
        """The ciphertexts of all pixels of up to N / 2 images (images, features).

        Compressed they are a little more than half as large, and take twice the server's time.

        Raises:
            PolyboundError: the images have another shape, or values outside of the plan's domain.
        """
        images = np.asarray(images, dtype=np.float64)
        if images.shape[1:] != (self.features,) or not 0 < len(images) <= self.parameters.ring // 2:
            raise PolyboundError(
                f"1 to {self.parameters.ring // 2} images of {self.features} pixels are wanted, got {images.shape}"
            )
        pixels = within(images, self.parameters.domain).T
        found = [self._exchange.to_bytes(self._encrypt(pixel)) for pixel in pixels]
        return found if compressed else [self._pixel.read(content, "a pixel") for content in found]

    def _encrypt(self, values: Array) -> Any:
        plain, result = sealapi.Plaintext(), sealapi.Ciphertext()
        self._encoder.encode(values.tolist(), 2.0**self.parameters.pixels, plain)
        # Not seeded: the server works on the residues of both polynomials.
        self._encryptor.encrypt_symmetric(plain, result)
        return result

    def decrypt(self, reply: list[bytes], images: int) -> Array:
        """The logits (images, classes) of a reply.

        Raises:
            PolyboundError: the reply is damaged, or of other parameters.
        """
        found, what = [], "the reply"
        for content in reply:
            result = self._exchange.load_into(
                sealapi.Ciphertext(), self._context, self._reply.read(content, what), what
            )
            plain = sealapi.Plaintext()
            self._decryptor.decrypt(result, plain)
            found.append(self._encoder.decode_double(plain)[:images])
        return np.array(found).T


class BatchServer:
    """The network of a batch plan.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        p = plan.parameters
        self._context = make_context(p.ring, p.bits)
        self._evaluator = sealapi.Evaluator(self._context)
        self._encoder = sealapi.CKKSEncoder(self._context)
        self._exchange = Exchange()
        form = Format(self._context, self._exchange)
        self._moduli = form.moduli(form.primes)
        self._key_forms = [form.relinearisation_keys(), form.public_key()]
        self._pixel = form.ciphertext(form.primes, 2.0**p.pixels, seeded=False)
        self._factor = form.ciphertext(form.primes, 2.0**p.pixels * 2.0**p.weights, seeded=False)
        self._weights = np.rint(plan.polynomial.W.reshape(-1, plan.polynomial.features) * 2.0**p.weights)
        largest = np.abs(self._weights).sum(1).max() * max(self._moduli)
        if largest >= 2.0**53:
            raise PolyboundError("the weights are too large for exact products: the plan is of another network")

    def load_keys(self, content: bytes) -> tuple[Any, Any]:
        """A client's keys: for products, and an encryptor of zeros.

        Raises:
            PolyboundError: they are damaged, or of other parameters.
        """
        what, kinds = "the keys", (sealapi.RelinKeys(), sealapi.PublicKey())
        products, public = (
            self._exchange.load_into(kind, self._context, form.read(part, what), what)
            for kind, form, part in zip(kinds, self._key_forms, split(content, self._key_forms, what), strict=True)
        )
        return products, sealapi.Encryptor(self._context, public)

    def classify(self, request: list[bytes], keys: tuple[Any, Any]) -> list[bytes]:
        """The encrypted logits, one ciphertext a class.

        Raises:
            PolyboundError: the request is not one of the plan's.
        """
        residues = self._residues(request)
        try:
            units = [self._product(self._factors(residues, unit), keys) for unit in range(self.plan.polynomial.rank)]
            return [self._exchange.to_bytes(logit) for logit in self._logits(units, keys)]
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
        residues: npt.NDArray[np.int64] = sums.astype(np.int64) % np.array(self._moduli)[:, None, None]
        return residues

    def _factors(self, rows: npt.NDArray[np.int64], unit: int) -> list[Any]:
        """The factors of one unit, constants included."""
        polynomial, found = self.plan.polynomial, []
        for i in range(polynomial.degree):
            content = self._factor.filled(rows[:, :, i * polynomial.rank + unit].astype(np.uint64))
            factor = self._exchange.load_into(sealapi.Ciphertext(), self._context, content, "a factor")
            self._add_constant(factor, float(polynomial.b[i, unit]))
            found.append(factor)
        return found

    def _product(self, factors: list[Any], keys: tuple[Any, Any]) -> Any:
        """The product of the factors of one unit, as a tree; where a factor is missing, one stands for it."""
        nodes: list[Any] = [*factors, *[None] * (len(tree_groups(len(factors))[0]) - len(factors))]
        for drop in self.plan.parameters.drops:
            half = len(nodes) // 2
            nodes = [self._multiplied(nodes[i], nodes[i + half], drop, keys) for i in range(half)]
        return nodes[0]

    def _multiplied(self, left: Any, right: Any, drop: int, keys: tuple[Any, Any]) -> Any:
        evaluator = self._evaluator
        if right is None:
            evaluator.multiply_plain_inplace(left, self._constant(1.0, left.parms_id(), left.scale))
        else:
            evaluator.multiply_inplace(left, right)
            evaluator.relinearize_inplace(left, keys[0])
        for _ in range(drop):
            evaluator.rescale_to_next_inplace(left)
        return left

    def _logits(self, units: list[Any], keys: tuple[Any, Any]) -> Iterator[Any]:
        polynomial, scale = self.plan.polynomial, 2.0**self.plan.parameters.output
        for row, bias in zip(polynomial.C, polynomial.beta, strict=True):
            # A fresh zero under the client's key hides how the sum was computed.
            total = sealapi.Ciphertext()
            keys[1].encrypt_zero(units[0].parms_id(), total)
            total.scale = units[0].scale * scale
            for value, unit in zip(row, units, strict=True):
                # SEAL refuses products with zero, which tell that they are.
                if abs(value) * scale >= 0.5:
                    product = sealapi.Ciphertext()
                    self._evaluator.multiply_plain(unit, self._constant(float(value), unit.parms_id(), scale), product)
                    self._evaluator.add_inplace(total, product)
            self._add_constant(total, float(bias))
            yield total

    def _add_constant(self, value: Any, constant: float) -> None:
        plain = self._constant(constant, value.parms_id(), value.scale)
        self._evaluator.add_plain_inplace(value, plain)

    def _constant(self, value: float, parms_id: Any, scale: float) -> Any:
        plain = sealapi.Plaintext()
        self._encoder.encode(value, parms_id, scale, plain)
        return plain
