"""The schematic of a network as data: which maps lead from the input to which product, read off its factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from polybound.models import CCP, Affine, Chain, Conv, Dense, Factors, Identity, PolynomialNetwork, Pool, polynomial

__all__ = ["Box", "Schematic", "Step", "describe", "describe_factors"]

MOST_STEPS = 16
"""Networks of a higher degree have the middle left out of their schematic, if its steps are alike."""

_KEPT = (4, 2)


@dataclass(frozen=True)
class Box:
    """A box of a schematic.

    Attributes:
        symbol: its name, "A" or "average pool".
        index: what stands at the foot of the name.
        lines: sizes and the like, below the name.
        kind: "learned" for weights, "operation" for maps without any, "input" or "output".
    """

    symbol: str
    index: str = ""
    lines: tuple[str, ...] = ()
    kind: Literal["learned", "operation", "input", "output"] = "learned"


@dataclass(frozen=True)
class Step:
    """One factor and its product.

    Attributes:
        path: the maps from the input to the product.
        between: the map from the product before to this one; None for the identity.
        product: whether there is anything to multiply with; the first factor of a CCP is taken as it is.
        skip: whether what the factor is multiplied with is added to the product, as in the residual form.
        result: the name of what comes out, with its size.
    """

    path: tuple[Box, ...]
    between: Box | None
    product: bool
    skip: bool
    result: str


@dataclass(frozen=True)
class Schematic:
    """All that is drawn of a network.

    Attributes:
        title: its name.
        facts: lines below the title.
        entry: the input, and the maps that all factors share.
        scale: s_1 of an NCP, which the first factor is multiplied with.
        steps: the factors in their order; None where some are left out.
        left_out: what is said of these.
        output: the maps from the last product to the output, and the output.
    """

    title: str
    facts: tuple[str, ...]
    entry: tuple[Box, ...]
    scale: Box | None
    steps: tuple[Step | None, ...]
    left_out: str
    output: tuple[Box, ...]


class _Names:
    """How numbers are written: as they are, or as the letters that stand for them."""

    def __init__(self, letters: Mapping[int, str]) -> None:
        self.letters = letters

    def number(self, value: int) -> str:
        return self.letters.get(value, f"{value:,}")

    def index(self, value: int) -> str:
        return self.letters.get(value, str(value))

    def sizes(self, values: Sequence[int]) -> str:
        return " × ".join(map(self.number, values))


def describe(model: PolynomialNetwork, title: str) -> Schematic:
    """The schematic of a network, with its degree, ranks, sizes and number of weights.

    The product form of a CCP is drawn as the paper has it, on the lifted input z = [x, 1].
    """
    factors = polynomial(model).factors()
    lifted = factors.kind == "CCP" and not factors.constant
    weights = sum(parameter.numel() for parameter in model.parameters()) // (model.runs or 1)
    form = f", {model.form} form" if isinstance(model, CCP) else ""
    width = getattr(model, "channels", None)
    units = f"{width} channels" if width is not None else f"rank {factors.A[-1].outputs}"
    facts = [f"{type(model).__name__}{form}, degree {model.degree}, {units}", f"{weights:,} weights"]
    facts += [f"a stack of {model.runs} such networks"] if model.runs is not None else []
    facts += _formula(factors, lifted)
    symbols = ("z", "= [x, 1]") if lifted else ("x", _Names({}).sizes(model.shape))
    shown = factors.lifted() if lifted else factors
    return describe_factors(shown, title, facts, entry=symbols)


def _formula(factors: Factors, lifted: bool) -> list[str]:
    """The recursion in a line, where all steps are matrices."""
    if len(factors.A) == 1 or not all(isinstance(a, Dense) for a in factors.A):
        return []
    if lifted:
        return ["f(z) = C ((U_1 z) ∘ … ∘ (U_k z))"]
    if factors.kind == "NCP":
        return ["y_n = A_n x ∘ S_n(y_(n-1)),  f = C(y_k)"]
    return ["y_n = V_n x ∘ y_(n-1) + y_(n-1),  f = C(y_k)"]


def describe_factors(
    factors: Factors,
    title: str,
    facts: Sequence[str],
    *,
    entry: tuple[str, str],
    letters: Mapping[int, str] | None = None,
    keep: tuple[int, int] | None = None,
) -> Schematic:
    """The schematic of factors.

    Args:
        factors: what is drawn.
        title: of the schematic.
        facts: lines below the title.
        entry: the input's name and its size.
        letters: what stands for some numbers, "m" for the rank.
        keep: how many steps at the beginning and at the end are drawn, if not all are.
    """
    names = _Names(letters or {})
    shared = _shared([_maps(a) for a in factors.A])
    steps = [_step(factors, n, len(shared), entry[0], names) for n in range(len(factors.A))]
    shown, left_out = _shorten(steps, keep, names)
    scale = None if _first_is_free(factors) else Box("s", "1", (names.number(factors.A[0].outputs),))
    last = factors.C.outputs
    return Schematic(
        title,
        tuple(facts),
        (Box(entry[0], "", (entry[1],), "input"), *(_box("pre", "", step, names) for step in shared)),
        scale,
        shown,
        left_out,
        (
            *(_box("C", "", step, names) for step in _maps(factors.C)),
            Box(f"f({entry[0]})", "", (names.number(last) + (" output" if last == 1 else " outputs"),), "output"),
        ),
    )


def _first_is_free(factors: Factors) -> bool:
    """Whether the first factor is multiplied with nothing: s_1 is 1 in a CCP."""
    return factors.kind == "CCP" and bool((factors.s1 == 1).all())


def _maps(step: Affine) -> tuple[Affine, ...]:
    return step.maps if isinstance(step, Chain) else (step,)


def _shared(paths: Sequence[tuple[Affine, ...]]) -> tuple[Affine, ...]:
    """The maps that all factors begin with: the same objects, as PN-Conv's pre-convolution is."""
    found: list[Affine] = []
    for first, *others in zip(*(path[:-1] for path in paths), strict=False):
        if any(other is not first for other in others) or not others:
            break
        found.append(first)
    return tuple(found)


def _step(factors: Factors, n: int, shared: int, entry: str, names: _Names) -> Step:
    a, free = factors.A[n], n == 0 and _first_is_free(factors)
    maps = _maps(a)[shared:]
    residual = n > 0 and _adds_one(a)
    symbol = "A" if factors.kind == "NCP" else "U" if entry == "z" else "V"
    path = [_box(symbol, names.index(n + 1), step, names, without_bias=residual) for step in _joined(maps)]
    between = None if n == 0 or isinstance(factors.S[n - 1], Identity) else factors.S[n - 1]
    box = None if between is None else _box("S", names.index(n + 1), between, names)
    shape = getattr(maps[-1], "out_shape", (a.outputs,))
    # The paper calls products of the lifted input z by x.
    result = f"{'x' if entry == 'z' else 'y'}_{names.index(n + 1)}: {names.sizes(shape)}"
    return Step(tuple(path), box, not free, residual, result)


def _adds_one(a: Affine) -> bool:
    """Whether a factor is W x + 1, so that its product is a sum of two terms."""
    return a.shift == 1.0 if isinstance(a, Chain) else bool((a.constant == 1).all())


def _joined(maps: Sequence[Affine]) -> list[Affine | tuple[Pool, Pool]]:
    """The maps in their order, with the first and the last of consecutive poolings as one."""
    found: list[Affine | tuple[Pool, Pool]] = []
    for step in maps:
        if isinstance(step, Pool):
            before = found.pop() if found and isinstance(found[-1], tuple) else (step, step)
            found.append((before[0], step) if isinstance(before, tuple) else (step, step))
        else:
            found.append(step)
    return found


def _box(symbol: str, index: str, step: Affine | tuple[Pool, Pool], names: _Names, without_bias: bool = False) -> Box:
    """The box of one map."""
    if isinstance(step, Pool):
        step = (step, step)
    if isinstance(step, tuple):
        before, after = (names.sizes(shape[1:]) for shape in (step[0].shape, step[1].out_shape))
        return Box("average pool", "", (f"{before} → {after}",), "operation")
    bias = not without_bias and bool((step.constant != 0).any())
    more = ("with bias",) if bias else ()
    if isinstance(step, Conv):
        kernel = names.sizes(step.weight.shape[-step.dims :])
        channels = f"{names.number(step.shape[0])} → {names.number(step.channels)} channels"
        return Box("K" if symbol in "UV" else symbol, index, (f"convolution {kernel}", channels, *more))
    if isinstance(step, Dense):
        return Box(symbol, index, (names.sizes((step.outputs, step.inputs)), *more))
    return Box(symbol, index, (f"{names.number(step.inputs)} → {names.number(step.outputs)}", *more))


def _shorten(steps: Sequence[Step], keep: tuple[int, int] | None, names: _Names) -> tuple[tuple[Step | None, ...], str]:
    """The steps that are drawn, and what is said of the others."""
    first, last = keep or _KEPT
    middle = steps[first : len(steps) - last]
    alike = {
        (tuple((box.symbol, box.lines) for box in step.path), step.between and step.between.lines, step.skip)
        for step in middle
    }
    if len(middle) < 2 or len(alike) > 1 or (keep is None and len(steps) <= MOST_STEPS):
        return tuple(steps), ""
    end = len(steps) - last
    text = "…" if names.letters else f"factors {first + 1} to {end}: the same"
    return (*steps[:first], None, *steps[end:]), text
