"""Which pixels and taps of a collapsed PN-Conv meet: the operators of `conv`, which depend on sizes alone.

A factor is linear in the image x: row r and column j of it, pooled by s, see x through:

    h[r, j] = sum over t, t' of K[t, t'] p[s r + a + t, s j + a' + t'],   p = P * x + c inside the image, 0 outside,

averaged over a, a' < s. Rows and columns separate. Along one axis, position r takes the pair (sigma, t) of taps of P
and of K to the tap u = a + t + sigma of x, for all t that stay inside: the matrix `A_r`, (U, S T). Far from the border
it is the same for all positions, `A`. The collapsed kernel at (r, j) is `(A_r x B_j)` applied to the products of P and
K.

- *Rows* get the kernel of their own `A_r` and, because the image's rows are the outermost dimension of its unfolded
  columns V, a window of V that has no zeros in it: (window) x (columns, images), one matrix product for each row.
- *Columns* near the border are corrected: `B_j - B` sees no more than the outermost columns of the image, its *lines*.
- *Constants* need a row of ones in every window: few rows of ones, between the rows of V, meet all windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise

import torch
from torch import Tensor

Step = Callable[[], object]
"""An operation on memory that stays where it is: listed once, run again for every batch."""


def run(steps: list[Step]) -> None:
    """Run the steps in order."""
    for step in steps:
        step()


@dataclass(frozen=True)
class Geometry:
    """The sizes of a ConvCCP of images, and the type and place of its tensors."""

    shape: tuple[int, ...]
    channels: int
    degree: int
    kernel: int
    pre: int | None
    pool: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """One level for each resolution of the factors, the finest first."""
        return _levels(self)

    def empty(self, *sizes: int) -> Tensor:
        """Memory that is not yet filled."""
        return torch.empty(sizes, dtype=self.dtype, device=self.device)

    def full(self, value: float, *sizes: int) -> Tensor:
        """A tensor of one value."""
        return torch.full(sizes, value, dtype=self.dtype, device=self.device)


@lru_cache(maxsize=16)
def _levels(sizes: Geometry) -> tuple[Level, ...]:
    """Made once for all models of these sizes: nothing changes a level."""
    pooled = [sum(after < n for after in sizes.pool) for n in range(1, sizes.degree + 1)]
    factors = {times: slice(pooled.index(times), pooled.index(times) + pooled.count(times)) for times in pooled}
    return tuple(Level(sizes, times, some) for times, some in sorted(factors.items()))


class Axis:
    """The operators of one axis, rows or columns, of an image.

    Attributes:
        middle: (U, S T), of all positions that are far from the border.
        whole: (T,), the taps of K that count there.
        left, right: what is missing of the middle at the positions near the border, by position.
    """

    def __init__(self, size: int, positions: int, taps: tuple[int, int], stride: int) -> None:
        self.size, self.positions, self.stride, (self.T, self.S) = size, positions, stride, taps
        self.U = self.T + self.S + stride - 2
        self.reach = self.T // 2 + self.S // 2
        self.middle, self.whole = self._operator(0, None)
        sides = ({r: self._operator(r, side) for r in range(positions)} for side in (-1, 1))
        self.left, self.right = ({r: pair for r, pair in side.items() if bool(pair[1].any())} for side in sides)

    def _operator(self, position: int, outside: int | None) -> tuple[Tensor, Tensor]:
        """All taps at a position, or those whose tap of K lies before (-1) or behind (1) the image."""
        found = torch.zeros(self.U, self.S, self.T, dtype=torch.float64)
        counts = torch.zeros(self.T, dtype=torch.float64)
        for a in range(self.stride):
            for t in range(self.T):
                q = self.stride * position + a + t - self.T // 2
                if outside is None or (q < 0 if outside < 0 else q >= self.size):
                    counts[t] += 1 / self.stride
                    for sigma in range(self.S):
                        found[a + t + sigma, sigma, t] += 1 / self.stride
        return found.flatten(1), counts

    def missing(self, position: int) -> tuple[Tensor, Tensor]:
        """What a position lacks of the middle, on both sides."""
        sides = [side[position] for side in (self.left, self.right) if position in side]
        zero = torch.zeros_like(self.middle), torch.zeros_like(self.whole)
        return sum((pair[0] for pair in sides), zero[0]), sum((pair[1] for pair in sides), zero[1])

    def place(self, position: int, u: int) -> int:
        """Where in the image tap u of a position is."""
        return self.stride * position - self.reach + u

    def window(self, position: int) -> tuple[int, int]:
        """The half-open range of pixels that a position sees."""
        return max(0, self.place(position, 0)), min(self.size, self.place(position, self.U))


class Level:
    """All factors of one resolution: which rows of the unfolded image meet which rows of the kernels.

    Attributes:
        factors: which of the network's factors.
        A, a: row operators of the distinct kernels, (kinds U, S T) and (kinds, T).
        B: column operators: of the middle, then of the lines by the corrected columns, (U + 2 lines columns, S T).
        b: (2 columns, T), what the corrected columns lack of the constants.
        A_lines, a_lines: row operators of the corrections: of the middle, then of the exceptional rows.
        order: the row of the kernels' table that each row of all windows has; see `conv`.
        windows: for each row of the level, its rows of the unfolded image, and its rows of the kernels.
        segments: pieces of the unfolded image between rows of ones: (first row of it, of the image, after the last).
        exceptions: rows of the level that see the border, with the taps and places where they do.
        corrected: (side, number, place) of the columns that are corrected.
    """

    def __init__(self, sizes: Geometry, times: int, factors: slice) -> None:
        self.inputs, height, width = sizes.shape
        self.factors, self.count, self.stride = factors, factors.stop - factors.start, 2**times
        pools = len(sizes.pool)
        self.halvings, self.last = pools - times, width >> pools
        rows, columns = ((n >> pools) << self.halvings for n in (height, width))
        self.rows = Axis(height, rows, (sizes.kernel, sizes.pre or 1), self.stride)
        self.columns = Axis(width, columns, (sizes.kernel, sizes.pre or 1), self.stride)
        self.U = self.rows.U
        self._arrange_windows()
        self._arrange_lines(sizes.pre is not None)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(sizes.device, sizes.dtype if value.is_floating_point() else None))

    def _arrange_windows(self) -> None:
        axis, block = self.rows, self.inputs * self.U
        # Rows of the image after which a row of ones comes: the fewest that every window has one.
        ones: list[int] = []
        for low, high in map(axis.window, range(axis.positions)):
            if not ones or ones[-1] < low:
                ones.append(high - 1)
        start = [rho * block + sum(after < rho for after in ones) for rho in range(axis.size + 1)]
        bounds = sorted({0, *(after + 1 for after in ones), axis.window(axis.positions - 1)[1]})
        self.segments = [(start[low], low, high) for low, high in pairwise(bounds)]
        self.depth = start[bounds[-1]]

        distinct: dict[bytes, tuple[int, Tensor, Tensor]] = {}
        kinds = []
        for r in range(axis.positions):
            missing, without = axis.missing(r)
            operator, counts = axis.middle - missing, axis.whole - without
            key = operator.numpy().tobytes() + counts.numpy().tobytes()
            kinds.append(distinct.setdefault(key, (len(distinct), operator, counts))[0])
        self.A = torch.cat([operator for _, operator, _ in distinct.values()])
        self.a = torch.stack([counts for _, _, counts in distinct.values()])
        # The table has the taps of every kind, then the constant of every kind, then a row of zeros.
        self.kinds, taps = len(distinct), self.U * block
        self.table_rows = self.kinds * (taps + 1) + 1

        self.windows: list[tuple[int, int, int, int]] = []
        order = list[int]()
        seen = dict[tuple[object, ...], tuple[int, int]]()
        for r, kind in enumerate(kinds):
            low, high = axis.window(r)
            first = low - axis.place(r, 0)
            inside = tuple(after - low for after in ones if low <= after < high)
            key_of_rows = kind, first, high - low, inside
            if key_of_rows not in seen:
                begin = len(order)
                for u in range(high - low):
                    at = kind * taps + (first + u) * block
                    order += range(at, at + block)
                    if u in inside:  # the constant counts once
                        order.append(self.kinds * taps + (kind if u == inside[0] else self.kinds))
                seen[key_of_rows] = begin, len(order)
            self.windows.append((start[low], start[high], *seen[key_of_rows]))
        self.order = torch.tensor(order)

    def _arrange_lines(self, pre: bool) -> None:
        axis, rows = self.columns, self.rows
        sides = (axis.left, axis.right)
        self.lines = min(axis.S // 2, axis.size) if pre else 0
        self.wide = max(len(side) for side in sides) if pre else 0
        self.edges = (slice(0, self.lines), slice(axis.size - self.lines, axis.size))
        B = torch.zeros(2, self.lines, self.wide, axis.S * axis.T, dtype=torch.float64)
        b = torch.zeros(2, self.wide, axis.T, dtype=torch.float64)
        self.corrected: list[tuple[int, int, int]] = []
        for side, missing in enumerate(sides):
            for number, (j, (operator, count)) in enumerate(missing.items() if pre else ()):
                self.corrected.append((side, number, self.in_order(j)))
                b[side, number] = -count
                for line, place in enumerate(range(self.edges[side].start, self.edges[side].stop)):
                    v = place - axis.place(j, 0)
                    if 0 <= v < axis.U:
                        B[side, line, number] = -operator[v]
        self.B, self.b = torch.cat([axis.middle, B.flatten(0, 2)]), b.flatten(0, 1)

        lacking = {r: rows.missing(r) for r in range(rows.positions) if r in rows.left or r in rows.right}
        self.exceptional = list(lacking)
        self.exceptions = [
            (r, u, rows.place(r, u))
            for r, (operator, _) in lacking.items()
            for u in range(rows.U)
            if bool(operator[u].any()) and 0 <= rows.place(r, u) < rows.size
        ]
        self.A_lines = torch.cat([rows.middle, *(-lacking[r][0][u].unsqueeze(0) for r, u, _ in self.exceptions)])
        self.a_lines = torch.stack([rows.whole, *(-count for _, count in lacking.values())])
        self.lines_depth = len(self.A_lines) * self.inputs * self.lines + len(self.a_lines)

    @cached_property
    def folding(self) -> tuple[Tensor, Tensor]:
        """Zeros and ones that add up what belongs to one pixel: (width, U columns) and, of lines, (height, ...)."""
        axis, rows, width = self.columns, self.rows, self.inputs * self.lines
        columns = torch.zeros(axis.size, self.U, axis.positions, dtype=self.A.dtype)
        for v in range(self.U):
            for j in range(axis.positions):
                if 0 <= axis.place(j, v) < axis.size:
                    columns[axis.place(j, v), v, self.in_order(j)] = 1.0
        depth = len(self.A_lines) * width
        lines = torch.zeros(rows.size, width, self.lines_depth, rows.positions, dtype=self.A.dtype)
        taps = lines[:, :, :depth].view(rows.size, width, len(self.A_lines), width, rows.positions)
        for n in range(width):
            for r in range(rows.positions):
                for u in range(self.U):
                    if 0 <= rows.place(r, u) < rows.size:
                        taps[rows.place(r, u), n, u, n, r] = 1.0
            for number, (r, _, place) in enumerate(self.exceptions):
                taps[place, n, self.U + number, n, r] = 1.0
        return columns.flatten(1).to(self.A), lines.flatten(2).flatten(0, 1).to(self.A)

    def in_order(self, column: int) -> int:
        """Where a column stands: the halves that the next pooling adds come one after the other, and so on."""
        place, rest = 0, column
        for n in range(self.halvings, 0, -1):
            place += (rest % 2) * (self.last << (n - 1))
            rest //= 2
        return place + rest


class Im2Col:
    """n images with their columns unfolded, rows of the image first and images last; `fill` takes the next n images.

    Args:
        sizes: of the network.
        n: how many images.
        constant: what multiplies the constants of the factors: 1, or 0 for directions, which see the linear part alone.

    Attributes:
        windows: for each level, the window of V that each row of its factors sees, (depth, columns n).
        lines: for each level, the lines that corrections of columns see, (2, depth, rows n).
    """

    def __init__(self, sizes: Geometry, n: int, constant: float = 1.0) -> None:
        self.n, (self.inputs, self.height, self.width) = n, sizes.shape
        levels = sizes.levels
        reach = levels[0].rows.reach
        right = max(level.columns.place(level.columns.positions - 1, level.U) for level in levels)
        below = max(level.rows.place(level.rows.positions - 1, level.U) for level in levels)
        image = sizes.full(0.0, self.height, self.inputs, reach + max(right, self.width), n)
        self.inside = image[:, :, reach : reach + self.width]
        edges = sizes.full(0.0, 2, reach + max(below, self.height), self.inputs * levels[0].lines, n)
        self.windows: list[list[Tensor]] = []
        self.lines: list[Tensor] = []
        copies: list[tuple[Tensor, Tensor]] = []  # all that is to be done for new images, in this order
        for side, edge in enumerate(levels[0].edges if levels[0].lines else ()):
            source = self.inside[:, :, edge]
            copies.append((edges[side, reach : reach + self.height].view(source.shape), source))
        for level in levels:
            # V in pieces, copied from overlapping views of the image.
            V = sizes.full(constant, level.depth, level.columns.positions * n)
            self.windows.append([V[first:last] for first, last, *_ in level.windows])
            by_row, by_input, *_ = image.stride()
            steps = [level.stride * 2**m * n for m in range(level.halvings + 1)]  # of the halves, and of what is left
            block = self.inputs * level.U
            for start, low, high in level.segments:
                shape = high - low, self.inputs, level.U, *(2,) * level.halvings, level.last, n
                source = image.as_strided(shape, (by_row, by_input, n, *steps, 1), low * by_row)
                copies.append((V[start : start + (high - low) * block].view(shape), source))
            # Lines: by taps of the rows, of exceptional rows by themselves, and constant ones.
            rows, width = level.rows.positions, self.inputs * level.lines
            L = sizes.full(0.0, 2, level.lines_depth, rows, n)
            self.lines.append(L.flatten(2))
            first = level.lines_depth - len(level.exceptional)
            L[:, first - 1] = constant
            for number, r in enumerate(level.exceptional):
                L[:, first + number, r] = constant
            if level.wide and level.lines:
                by_side, by_row, *_ = edges.stride()
                shape = 2, level.U, width, rows, n
                taps = edges.as_strided(shape, (by_side, by_row, n, level.stride * by_row, 1))
                copies.append((L[:, : level.U * width].view(shape), taps))
                for number, (r, _, place) in enumerate(level.exceptions, level.U):
                    copies.append((L[:, number * width : (number + 1) * width, r], edges[:, reach + place]))
        self.copies: list[Step] = [partial(into.copy_, source) for into, source in copies]

    def fill(self, x: Tensor) -> None:
        """Take the images x, (n, inputs * height * width)."""
        self.inside.copy_(x.reshape(self.n, self.inputs, self.height, self.width).permute(2, 1, 3, 0))
        run(self.copies)


class Col2Im:
    """The gradient by n images, folded back from those by the windows and lines of `Im2Col`.

    Attributes:
        windows: as those of `Im2Col`, to be added to.
        lines: the same of the lines.
    """

    def __init__(self, sizes: Geometry, n: int) -> None:
        self.levels, self.n, (inputs, height, self.width) = sizes.levels, n, sizes.shape
        self.V = [sizes.full(0.0, level.depth, level.columns.positions * n) for level in self.levels]
        self.windows = [
            [V[first:last] for first, last, *_ in level.windows] for level, V in zip(self.levels, self.V, strict=True)
        ]
        self.lines = [sizes.empty(2, level.lines_depth, level.rows.positions * n) for level in self.levels]
        self.image = sizes.full(0.0, height, inputs, self.width, n)

    def clear(self) -> None:
        """Set all gradients to zero."""
        for V in self.V:
            V.zero_()

    def image_gradient(self) -> Tensor:
        """The gradient by the images, (n, inputs * height * width)."""
        self.image.zero_()
        for level, V, L in zip(self.levels, self.V, self.lines, strict=True):
            columns, lines = level.folding
            for start, low, high in level.segments:
                count = (high - low) * level.inputs
                piece = V[start : start + count * level.U].view(count, -1, self.n)
                self.image[low:high].view(count, self.width, self.n).baddbmm_(columns.expand(count, -1, -1), piece)
            if level.wide and level.lines:
                found = torch.matmul(lines, L.view(2, -1, self.n))
                for side, edge in enumerate(level.edges):
                    into = self.image[:, :, edge]
                    into += found[side].view(into.shape)
        return self.image.permute(3, 1, 0, 2).reshape(self.n, -1)
