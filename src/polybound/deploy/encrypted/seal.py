"""Microsoft SEAL, through TenSEAL's bindings: contexts, and its own file format as bytes.

The bindings write to paths only; all files lie in private temporary directories and are gone after use. Secret keys
are never written.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenseal import sealapi

from polybound.errors import PolyboundError

if TYPE_CHECKING:
    from polybound.deploy.encrypted.messages import Checked

__all__ = ["CONJUGATION", "Exchange", "galois_elements", "make_context", "sealapi"]

CONJUGATION = -1
"""The step that stands for complex conjugation."""


def make_context(ring: int, bits: Sequence[int]) -> Any:
    """The context of a CKKS scheme; SEAL itself refuses what is below 128-bit security.

    Raises:
        PolyboundError: it refused.
    """
    parameters = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(ring)
    try:
        parameters.set_coeff_modulus(sealapi.CoeffModulus.Create(ring, list(bits)))
        context = sealapi.SEALContext(parameters, True, sealapi.SEC_LEVEL_TYPE.TC128)
    except (RuntimeError, ValueError) as error:
        raise PolyboundError(f"SEAL refuses ring {ring} with primes of {list(bits)} bits ({error})") from None
    if not context.parameters_set():
        raise PolyboundError(
            f"SEAL refuses ring {ring} with primes of {list(bits)} bits ({context.parameters_error_message()})"
        )
    return context


def galois_elements(ring: int, steps: Sequence[int]) -> list[int]:
    """The Galois elements of rotations by these steps: `3^step mod 2 N`; `2 N - 1` is the conjugation."""
    return [2 * ring - 1 if step == CONJUGATION else pow(3, step, 2 * ring) for step in steps]


class Exchange:
    """SEAL's objects to bytes and back, by way of a private temporary directory.

    Attributes:
        folder: that directory; it is removed with the object.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="polybound-"))
        self._count = 0
        self._cleanup = weakref.finalize(self, shutil.rmtree, self.folder, True)

    def _path(self) -> Path:
        self._count += 1
        return self.folder / f"{self._count}.seal"

    def to_bytes(self, value: Any) -> bytes:
        """A ciphertext or public keys in SEAL's format, seeded if `value` is what SEAL calls serializable."""
        path = self._path()
        try:
            value.save(str(path))
            return path.read_bytes()
        finally:
            path.unlink(missing_ok=True)

    def load_into(self, value: Any, context: Any, content: Checked, what: str) -> Any:
        """The object, filled from bytes that were checked: SEAL's loader ends the process on some that are damaged.

        Raises:
            PolyboundError: SEAL refuses them all the same; the message names `what`.
        """
        path = self._path()
        try:
            path.write_bytes(content)
            value.load(context, str(path))
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise PolyboundError(f"{what} cannot be read: {error}") from None
        finally:
            path.unlink(missing_ok=True)
        return value

    def close(self) -> None:
        """Remove the directory now."""
        self._cleanup()
