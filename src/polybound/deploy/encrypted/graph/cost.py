"""What operations cost, in milliseconds: measured once for each ring, as polynomials in the number n of data primes.

Measured with SEAL 4.1 through TenSEAL 0.3.18, one thread of an AMD EPYC with AVX-512, in CPU time. Other machines
differ by a factor that is nearly the same for all operations.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Costs in milliseconds with n data primes.

    Attributes:
        ring: dimension N; all but the logarithm in it is linear.
    """

    ring: int = 16384

    @property
    def _share(self) -> float:
        return self.ring * (self.ring.bit_length() - 1) / (16384 * 14)

    def rotation(self, n: int) -> float:
        """A rotation, a key switch."""
        return self._share * (0.123 * n * n + 0.68 * n)

    def plain(self, n: int) -> float:
        """A product with a plaintext, and its addition."""
        return self.ring / 16384 * 0.095 * n

    def rescale(self, n: int) -> float:
        """A rescale by one prime."""
        return self._share * 0.27 * n

    def product(self, n: int) -> float:
        """A product of two ciphertexts, relinearised."""
        return self._share * (0.126 * n * n + 0.81 * n)
