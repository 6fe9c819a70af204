"""Ciphertexts in SEAL's format as arrays of residues, and back: one header, some numbers, then raw words.

    header (16 bytes) | parms_id (32) | NTT form (1) | polynomials, ring, primes, scale, correction factor (8 each)
    | header of the words (16) | their number (8) | words

All after the first header may be compressed by zstd. Everything is compared with what the plan expects.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from polybound.deploy.encrypted.messages import HEADER
from polybound.errors import PolyboundError

__all__ = ["ResidueFormat"]

_FIELDS = struct.Struct("<4QBQQQdQ")
_COUNT = struct.Struct("<Q")
_MAGIC, _PLAIN, _ZSTD = 0xA15E, 0, 2
PREFIX = _FIELDS.size + HEADER.size + _COUNT.size


@dataclass(frozen=True)
class ResidueFormat:
    """Fresh ciphertexts of one context: two polynomials in NTT form.

    Attributes:
        parms_id: of the context's first level.
        ring: dimension N.
        moduli: the data primes.
        version: SEAL's major and minor version.
    """

    parms_id: tuple[int, ...]
    ring: int
    moduli: tuple[int, ...]
    version: tuple[int, int]

    @staticmethod
    def of(context: Any, exchange: Any, sample: Any) -> ResidueFormat:
        """The format of a context; `sample` is any object that SEAL can save, for its version."""
        data = context.first_context_data()
        moduli = tuple(modulus.value() for modulus in data.parms().coeff_modulus())
        _, _, major, minor, *_ = HEADER.unpack(exchange.to_bytes(sample)[: HEADER.size])
        ring = data.parms().poly_modulus_degree()
        return ResidueFormat(tuple(context.first_parms_id()), ring, moduli, (major, minor))

    @property
    def words(self) -> int:
        """The number of residues of a ciphertext."""
        return 2 * len(self.moduli) * self.ring

    def read(self, content: memoryview, scale: float) -> npt.NDArray[np.uint64]:
        """The residues (2, primes, ring) of a fresh ciphertext of that scale.

        Raises:
            PolyboundError: it is something else.
        """
        raw = self._unpacked(content)
        if bytes(raw[:PREFIX]) != self._prefix(scale):
            raise PolyboundError("a ciphertext of other parameters than the plan's")
        residues = np.frombuffer(raw, np.uint64, offset=PREFIX).reshape(2, len(self.moduli), self.ring)
        if (residues.max((0, 2)) >= np.array(self.moduli, dtype=np.uint64)).any():
            raise PolyboundError("a ciphertext with residues that are none")
        return residues

    def uncompressed(self, content: bytes) -> bytes:
        """The same ciphertext, not compressed: larger, and read in less time."""
        body = bytes(self._unpacked(memoryview(content)))
        return self._header(HEADER.size + len(body)) + body

    def write(self, residues: npt.NDArray[np.uint64], scale: float) -> bytes:
        """A ciphertext in SEAL's format, not compressed."""
        words = np.ascontiguousarray(residues, dtype="<u8").tobytes()
        return self._header(HEADER.size + PREFIX + len(words)) + self._prefix(scale) + words

    def _prefix(self, scale: float) -> bytes:
        """All between the header and the words."""
        fields = _FIELDS.pack(*self.parms_id, 1, 2, self.ring, len(self.moduli), scale, 1)
        return fields + self._header(HEADER.size + _COUNT.size + 8 * self.words) + _COUNT.pack(self.words)

    def _header(self, size: int) -> bytes:
        return HEADER.pack(_MAGIC, HEADER.size, *self.version, _PLAIN, 0, size)

    def _unpacked(self, content: memoryview) -> memoryview:
        """What follows the header, decompressed; it is valid until the next call."""
        _, _, major, minor, compression, _, _ = HEADER.unpack(content[: HEADER.size])
        if (major, minor) != self.version or compression not in (_PLAIN, _ZSTD):
            raise PolyboundError("a ciphertext of another version of SEAL, or compressed otherwise")
        body, size = content[HEADER.size :], PREFIX + 8 * self.words
        if compression == _ZSTD:
            try:
                # One byte more than is allowed, so that what is too long is seen to be.
                length = zstandard.ZstdDecompressor().stream_reader(body).readinto(self._scratch)
            except zstandard.ZstdError as error:
                raise PolyboundError(f"a ciphertext that cannot be decompressed ({error})") from None
            body = memoryview(self._scratch)[:length]
        if len(body) != size:
            raise PolyboundError(f"a ciphertext of {len(body)} bytes, {size} are wanted")
        return body

    @cached_property
    def _scratch(self) -> bytearray:
        # Fresh memory for each of hundreds of ciphertexts would take longer than to fill it.
        return bytearray(PREFIX + 8 * self.words + 1)
