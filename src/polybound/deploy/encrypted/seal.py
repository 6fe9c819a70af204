"""Microsoft SEAL through TenSEAL's bindings. SEAL itself is only ever given bytes that were checked here.

SEAL's loader trusts what it reads: a changed number of key parts ends the process later, a damaged inner header at
once, and small messages may unpack to gigabytes. An object is a header and its members, in bytes:

    header       magic number 2 | own size 1 | version 2 | compression 1 | nothing 2 | size with the header 8
    ciphertext   parms_id 32 | NTT form 1 | polynomials 8 | ring 8 | primes 8 | scale 8 | correction factor 8
                 | header 16 | number of words 8 | words
                 | header 16 | generator 1 | seed 64              instead of the words of the second polynomial
    keys         parms_id 32 | places 8 | at each place: number of parts 8 | as many ciphertexts, with headers

All after the first header may be compressed by zstd. The plan determines every byte of this but the residues, the
seeds and the scale of a reply. A `Form` holds those bytes, compares them, and checks the rest for its range. What it
accepts is handed on uncompressed, and has the form's size.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NewType

import numpy as np
import numpy.typing as npt
import zstandard
from tenseal import sealapi

from polybound.errors import PolyboundError

__all__ = ["HEADER", "Checked", "Form", "Keys", "Scheme", "sealapi", "split"]

Checked = NewType("Checked", bytes)
"""An object in SEAL's format whose bytes a `Form` has checked."""

HEADER = struct.Struct("<HBBBBHQ")
"""SEAL's header: magic number, its own size, major and minor version, compression, nothing, size with the header."""

_MAGIC, _PLAIN, _ZSTD = 0xA15E, 0, 2
_FIELDS = struct.Struct("<4QBQQQ")
_COUNT, _SCALE = struct.Struct("<Q"), struct.Struct("<d")
_GENERATOR = b"\x01"  # BLAKE2xb, SEAL's default


class Scheme:
    """A CKKS scheme: its context, its encoder, and the forms of its objects as bytes.

    The bindings read and write paths only. All files lie in a private temporary directory and are removed after use.
    Secret keys are never written.

    Args:
        ring: dimension N.
        bits: sizes of the primes in bits, the special prime last.

    Attributes:
        context: SEAL's context.
        encoder: from slots to plaintexts and back.
        folder: the temporary directory; it is removed with the object.
        primes: the number of data primes.
        moduli: the data primes.

    Raises:
        PolyboundError: SEAL refuses the parameters, as it does below 128-bit security.
    """

    def __init__(self, ring: int, bits: Sequence[int]) -> None:
        parameters = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
        parameters.set_poly_modulus_degree(ring)
        refusal = f"SEAL refuses ring {ring} with primes of {list(bits)} bits"
        try:
            parameters.set_coeff_modulus(sealapi.CoeffModulus.Create(ring, list(bits)))
            self.context = sealapi.SEALContext(parameters, True, sealapi.SEC_LEVEL_TYPE.TC128)
        except (RuntimeError, ValueError) as error:
            raise PolyboundError(f"{refusal} ({error})") from None
        if not self.context.parameters_set():
            raise PolyboundError(f"{refusal} ({self.context.parameters_error_message()})")
        self.encoder = sealapi.CKKSEncoder(self.context)
        self.folder = Path(tempfile.mkdtemp(prefix="polybound-"))
        self.close = weakref.finalize(self, shutil.rmtree, self.folder, True)
        self._files = 0
        _, _, major, minor, *_ = HEADER.unpack(self.to_bytes(sealapi.Plaintext("0"))[: HEADER.size])
        self._version, self._ring = (major, minor), ring
        self._levels: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        level = self.context.key_context_data()
        while level is not None:
            moduli = tuple(modulus.value() for modulus in level.parms().coeff_modulus())
            self._levels[len(moduli)] = tuple(level.parms_id()), moduli
            level = level.next_context_data()
        self.primes = max(self._levels) - 1
        self.moduli = self._levels[self.primes][1]

    def plain(self, slots: npt.NDArray[Any] | float, scale: float, parms_id: Any = None) -> Any:
        """The plaintext of some slots, or of one number in all of them; at the first level unless another is named."""
        plain = sealapi.Plaintext()
        values = slots.tolist() if isinstance(slots, np.ndarray) else slots
        self.encoder.encode(values, self.context.first_parms_id() if parms_id is None else parms_id, scale, plain)
        return plain

    def parms_id(self, primes: int) -> tuple[int, ...]:
        """SEAL's name of the level that has this number of primes."""
        return self._levels[primes][0]

    def to_bytes(self, value: Any) -> bytes:
        """A ciphertext or public keys in SEAL's format, seeded if `value` is what SEAL calls serializable."""
        path = self._path()
        try:
            value.save(str(path))
            return path.read_bytes()
        finally:
            path.unlink(missing_ok=True)

    def load(self, value: Any, content: Checked, what: str) -> Any:
        """The object, filled from bytes that were checked: SEAL's loader ends the process on some that are damaged.

        Raises:
            PolyboundError: SEAL refuses them all the same; the message names `what`.
        """
        path = self._path()
        try:
            path.write_bytes(content)
            value.load(self.context, str(path))
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise PolyboundError(f"{what} cannot be read: {error}") from None
        finally:
            path.unlink(missing_ok=True)
        return value

    def load_all(self, values: Sequence[Any], forms: Sequence[Form], content: bytes, what: str) -> list[Any]:
        """The objects of a message, filled from its parts after each was checked against its form.

        Raises:
            PolyboundError: they are damaged, incomplete or of other parameters; the message names `what`.
        """
        parts = zip(values, forms, split(content, forms, what), strict=True)
        return [self.load(value, form.read(part, what), what) for value, form, part in parts]

    def _path(self) -> Path:
        self._files += 1
        return self.folder / f"{self._files}.seal"

    def rotations(self, steps: Iterable[int]) -> list[int]:
        """The Galois elements of rotations by these steps, `3^step mod 2 N`, and of the conjugation, `2 N - 1`."""
        return [*(pow(3, step, 2 * self._ring) for step in steps), 2 * self._ring - 1]

    def ciphertext(self, primes: int, scale: float | None, seeded: bool) -> Form:
        """The form of two polynomials in NTT form.

        Args:
            primes: at the level that has this number of primes.
            scale: None leaves it to the sender.
            seeded: whether the second polynomial is a seed.
        """
        return Form(self._version, tuple(self._ciphertext(primes, scale, seeded)))

    def key_forms(self, elements: Sequence[int] = ()) -> list[Form]:
        """The forms of a client's public keys: for products, for these Galois elements if any, and to encrypt.

        The first two are seeded. The key of element e is at the place (e - 1) / 2 of as many as the ring.
        """
        chosen = {(element - 1) // 2 for element in elements}
        rotations = [self._keys([place in chosen for place in range(self._ring)])] if elements else []
        # A public key is a ciphertext with the special prime.
        return [self._keys([True]), *rotations, self.ciphertext(self.primes + 1, 1.0, seeded=False)]

    def load_keys(self, content: bytes, forms: Sequence[Form]) -> Keys:
        """A client's public keys.

        Raises:
            PolyboundError: they are damaged, incomplete or of other parameters.
        """
        kinds = [sealapi.RelinKeys(), *([sealapi.GaloisKeys()] if len(forms) == 3 else []), sealapi.PublicKey()]
        relinearisation, *rotations, public = self.load_all(kinds, forms, content, "the keys")
        return Keys(relinearisation, rotations[0] if rotations else None, sealapi.Encryptor(self.context, public))

    def _keys(self, places: Sequence[bool]) -> Form:
        part = self._ciphertext(self.primes + 1, 1.0, seeded=True)
        part = [_header(self._version, sum(map(len, part))), *part]
        pieces: list[_Piece] = [struct.pack("<4QQ", *self._levels[self.primes + 1][0], len(places))]
        for present in places:
            # A key has a part for each data prime.
            pieces += [_COUNT.pack(self.primes), *part * self.primes] if present else [_COUNT.pack(0)]
        joined: list[_Piece] = []
        for piece in pieces:
            if isinstance(piece, bytes) and joined and isinstance(joined[-1], bytes):
                joined[-1] += piece
            else:
                joined.append(piece)
        return Form(self._version, tuple(joined))

    def _ciphertext(self, primes: int, scale: float | None, seeded: bool) -> list[_Piece]:
        parms_id, moduli = self._levels[primes]
        words, seed = _words(1 if seeded else 2, moduli, self._ring), _Free((8,))
        factor = _COUNT.pack(1) + _header(self._version, _COUNT.size + len(words)) + _COUNT.pack(len(words) // 8)
        fields = _FIELDS.pack(*parms_id, 1, 2, self._ring, primes)
        known: list[_Piece] = [fields, _scale(prod(moduli)), factor]
        if scale is not None:
            known = [fields + _SCALE.pack(scale) + factor]
        info = _header(self._version, len(_GENERATOR) + len(seed)) + _GENERATOR
        return [*known, words, info, seed] if seeded else [*known, words]


@dataclass(frozen=True, eq=False)
class Keys:
    """A client's public keys, loaded and checked.

    Attributes:
        relinearisation: for products.
        rotations: Galois keys, for rotations and the conjugation; None for batches.
        encryptor: encrypts zeros under the client's public key.
    """

    relinearisation: Any
    rotations: Any
    encryptor: Any


def _header(version: tuple[int, int], size: int) -> bytes:
    """The header of an uncompressed object whose members have this size."""
    return HEADER.pack(_MAGIC, HEADER.size, *version, _PLAIN, 0, HEADER.size + size)


@dataclass(frozen=True)
class _Free:
    """Bytes that a sender is free to choose.

    Attributes:
        shape: of the numbers of 8 bytes that they are.
        complaint: what is wrong with them; "" if nothing is.
    """

    shape: tuple[int, ...]
    complaint: Callable[[memoryview], str] = lambda _: ""

    def __len__(self) -> int:
        return 8 * prod(self.shape)


def _words(polynomials: int, moduli: tuple[int, ...], ring: int) -> _Free:
    """Polynomials by their residues: (polynomials, primes, ring)."""
    shape = polynomials, len(moduli), ring

    def complaint(content: memoryview) -> str:
        residues = np.frombuffer(content, "<u8").reshape(shape)
        if (residues.max((0, 2)) >= np.array(moduli, dtype=np.uint64)).any():
            return "its residues are not below their primes"
        if polynomials == 2 and not residues[1].any():
            return "its second polynomial is zero, so nothing is encrypted"
        return ""

    return _Free(shape, complaint)


def _scale(modulus: int) -> _Free:
    """A scale that the receiver does not know; it lies below the modulus."""
    return _Free((1,), lambda part: "" if 1 <= _SCALE.unpack(part)[0] < modulus else "its scale is out of range")


_Piece = bytes | _Free


@dataclass(frozen=True)
class Form:
    """What an object must be, byte by byte.

    Attributes:
        version: SEAL's major and minor version.
        pieces: the object's members in their order: bytes that are given, and what a sender is free to choose.
    """

    version: tuple[int, int]
    pieces: tuple[_Piece, ...]

    @cached_property
    def size(self) -> int:
        """The size of the members, uncompressed."""
        return sum(map(len, self.pieces))

    @property
    def limit(self) -> int:
        """The largest size of an object: compressed, random words grow a little."""
        return HEADER.size + self.size + self.size // 128 + 512

    def check(self, content: bytes | memoryview, what: str, scratch: bytearray | None = None) -> memoryview:
        """The members of an object, uncompressed; `scratch` is memory of `size + 1` bytes for them.

        No more than one byte beyond the form's size is ever decompressed.

        Raises:
            PolyboundError: the object is damaged, or of other parameters than the form's; the message names `what`.
        """
        view = memoryview(content)
        if len(view) < HEADER.size:
            raise PolyboundError(f"{what}: an object is truncated")
        magic, own, major, minor, compression, _, size = HEADER.unpack(view[: HEADER.size])
        if magic != _MAGIC or own != HEADER.size or size != len(view):
            raise PolyboundError(f"{what}: an object is not in SEAL's format, or truncated")
        if (major, minor) != self.version or compression not in (_PLAIN, _ZSTD):
            raise PolyboundError(f"{what}: an object of another version of SEAL, or not compressed by zstd")
        body = view[HEADER.size :]
        if compression == _ZSTD:
            unpacked = memoryview(bytearray(self.size + 1) if scratch is None else scratch)
            try:
                # The window is memory as well: that of an honest sender is at most the content's size.
                reader = zstandard.ZstdDecompressor(max_window_size=max(self.size, 2**21)).stream_reader(body)
                length = reader.readinto(unpacked)
            except zstandard.ZstdError as error:
                raise PolyboundError(f"{what}: an object cannot be decompressed ({error})") from None
            body = unpacked[:length]
        if len(body) != self.size:
            found = "more" if len(body) > self.size else str(len(body))
            raise PolyboundError(f"{what}: an object has {found} bytes instead of {self.size}")
        at = 0
        for piece in self.pieces:
            part = body[at : at + len(piece)]
            at += len(piece)
            if isinstance(piece, bytes):
                if part != piece:
                    raise PolyboundError(f"{what}: an object of other parameters than the plan's, or damaged")
            elif complaint := piece.complaint(part):
                raise PolyboundError(f"{what}: an object is damaged, {complaint}")
        return body

    def read(self, content: bytes | memoryview, what: str) -> Checked:
        """The object, checked and uncompressed.

        Raises:
            PolyboundError: as `check`.
        """
        body = self.check(content, what)
        return Checked(b"".join([_header(self.version, len(body)), body]))

    def residues(self, content: bytes | memoryview, what: str, scratch: bytearray) -> npt.NDArray[np.uint64]:
        """The residues (polynomials, primes, ring) of a ciphertext without a seed, valid until `scratch` changes."""
        body, words = self.check(content, what, scratch), self.pieces[-1]
        assert isinstance(words, _Free)  # noqa: S101
        return np.frombuffer(body, "<u8", offset=self.size - len(words)).reshape(words.shape)

    def filled(self, residues: npt.NDArray[np.uint64]) -> Checked:
        """A ciphertext of this form, without a seed and of a known scale, with these residues."""
        given = b"".join(piece for piece in self.pieces if isinstance(piece, bytes))
        words = np.ascontiguousarray(residues, dtype="<u8")
        return Checked(b"".join([_header(self.version, len(given) + words.nbytes), given, words.data.cast("B")]))


def split(content: bytes, forms: Sequence[Form], what: str) -> list[memoryview]:
    """The parts of a message, one for each form; only their headers and sizes are checked.

    Raises:
        PolyboundError: there are more or fewer, or one is too large or not SEAL's; the message names `what`.
    """
    rest = memoryview(content)
    parts = []
    for number, form in enumerate(forms, 1):
        if len(rest) < HEADER.size:
            raise PolyboundError(f"{what} ends before its part {number} of {len(forms)}")
        magic, own, *_, size = HEADER.unpack(rest[: HEADER.size])
        if magic != _MAGIC or own != HEADER.size:
            raise PolyboundError(f"{what}: part {number} is not in SEAL's format")
        if not HEADER.size < size <= len(rest):
            raise PolyboundError(f"{what} is truncated: part {number} claims {size} bytes, {len(rest)} are there")
        if size > form.limit:
            raise PolyboundError(f"{what}: part {number} has {size} bytes, more than {form.limit}")
        parts.append(rest[:size])
        rest = rest[size:]
    if len(rest):
        raise PolyboundError(f"{what} goes on for {len(rest)} bytes after its last part")
    return parts
