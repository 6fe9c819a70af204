"""Where the products of a collapsed PN-Conv meet: constants of `conv` that depend on sizes alone.

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

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["Col2Im", "Im2Col", "Level", "levels"]


def levels(
    shape: Sequence[int], degree: int, kernel: int, pre: int | None, pool: Sequence[int], like: Tensor
) -> list[Level]:
    """One level for each resolution of the factors of a ConvCCP, the finest first; tensors like `like`."""
    return list(_levels(tuple(shape), degree, kernel, pre, tuple(pool), like.dtype, like.device))


@lru_cache(maxsize=16)
def _levels(
    shape: tuple[int, ...],
    degree: int,
    kernel: int,
    pre: int | None,
    pool: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Level, ...]:
    """The same, made once: nothing changes a level."""
    pooled = [sum(after < n for after in pool) for n in range(1, degree + 1)]
    found = []
    for times in sorted(set(pooled)):
        factors = slice(pooled.index(times), pooled.index(times) + pooled.count(times))
        found.append(Level(shape, factors, kernel, pre, times, len(pool)).to(dtype, device))
    return tuple(found)


class Axis:
    """The operators of one axis, rows or columns, of an image.

    Attributes:
        middle: (U, S T), of all positions that are far from the border.
        whole: (T,), the taps of K that count there.
        left, right: for positions near the border, what is missing of the middle, by position.
    """

    def __init__(self, size: int, positions: int, taps: tuple[int, int], stride: int) -> None:
        self.size, self.positions, self.stride, (self.T, self.S) = size, positions, stride, taps
        self.U = self.T + self.S + stride - 2
        self.reach = self.T // 2 + self.S // 2
        self.middle, self.whole = self._operator(0, None)
        self.left = self._missing(-1)
        self.right = self._missing(1)

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

    def _missing(self, outside: int) -> dict[int, tuple[Tensor, Tensor]]:
        found = {r: self._operator(r, outside) for r in range(self.positions)}
        return {r: pair for r, pair in found.items() if bool(pair[1].any())}

    def missing(self, position: int) -> tuple[Tensor, Tensor]:
        """What a position lacks of the middle, on both sides."""
        sides = [side[position] for side in (self.left, self.right) if position in side]
        zero = torch.zeros_like(self.middle), torch.zeros_like(self.whole)
        return sum((pair[0] for pair in sides), zero[0]), sum((pair[1] for pair in sides), zero[1])

    def place(self, position: int, u: int) -> int:
        """Where in the image tap u of a position is."""
        return self.stride * position - self.reach + u

    def window(self, position: int) -> tuple[int, int]:
        """First and last but one place of the image that a position sees."""
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

    def __init__(
        self, shape: Sequence[int], factors: slice, kernel: int, pre: int | None, times: int, pools: int
    ) -> None:
        self.inputs, height, width = shape
        self.factors, self.count, self.stride = factors, factors.stop - factors.start, 2**times
        self.halvings = pools - times
        self.last = width >> pools
        rows, columns = ((n >> pools) << self.halvings for n in (height, width))
        self.rows = Axis(height, rows, (kernel, pre or 1), self.stride)
        self.columns = Axis(width, columns, (kernel, pre or 1), self.stride)
        self.U = self.rows.U
        self._arrange_windows()
        self._arrange_lines(pre is not None)
        self._arrange_exceptions()

    def to(self, dtype: torch.dtype, device: torch.device) -> Level:
        """Itself, with its tensors on the device and, but for indices, of the type."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device, dtype if value.is_floating_point() else None))
        return self

    def _arrange_windows(self) -> None:
        axis, block = self.rows, self.inputs * self.U
        ones = self._rows_of_ones()
        start = [rho * block + sum(after < rho for after in ones) for rho in range(axis.size + 1)]
        operators, counts = list[Tensor](), list[Tensor]()
        order, seen = list[tuple[str, int, int]](), dict[tuple[object, ...], tuple[int, int]]()
        kinds: dict[bytes, int] = {}
        self.windows: list[tuple[int, int, int, int]] = []
        for r in range(axis.positions):
            missing, without = axis.missing(r)
            kind = kinds.setdefault(missing.numpy().tobytes() + without.numpy().tobytes(), len(kinds))
            if kind == len(operators):
                operators.append(axis.middle - missing)
                counts.append(axis.whole - without)
            low, high = axis.window(r)
            inside = tuple(after - low for after in ones if low <= after < high)
            key = kind, low - axis.place(r, 0), high - low, inside
            if key not in seen:
                rows = self._table_rows(kind, low - axis.place(r, 0), high - low, inside)
                seen[key] = len(order), len(order) + len(rows)
                order += rows
            self.windows.append((start[low], start[high], *seen[key]))
        self.kinds = len(kinds)
        self.table_rows = self.kinds * (self.U * block + 1) + 1
        self.A, self.a = torch.cat(operators), torch.stack(counts)
        self.order = torch.tensor([self._place_in_table(*row) for row in order])
        bounds = sorted({0, *(after + 1 for after in ones), axis.window(axis.positions - 1)[1]})
        self.segments = [(start[low], low, high) for low, high in pairwise(bounds)]
        self.depth = start[bounds[-1]]

    def _rows_of_ones(self) -> list[int]:
        """Rows of the image after which a row of ones comes: the fewest that every window has one."""
        found: list[int] = []
        for r in range(self.rows.positions):
            low, high = self.rows.window(r)
            if not found or found[-1] < low:
                found.append(high - 1)
        return found

    def _table_rows(self, kind: int, first: int, count: int, ones: tuple[int, ...]) -> list[tuple[str, int, int]]:
        """What each row of a window is to be multiplied with: taps of a kernel, its constant (once), nothing."""
        rows: list[tuple[str, int, int]] = []
        for u in range(count):
            width = self.inputs * self.U
            rows += [("tap", kind, (first + u) * width + n) for n in range(width)]
            if u in ones:
                rows.append(("constant" if u == ones[0] else "nothing", kind, 0))
        return rows

    def _place_in_table(self, what: str, kind: int, number: int) -> int:
        size = self.U * self.inputs * self.U
        if what == "tap":
            return kind * size + number
        return len(self.a) * size + (kind if what == "constant" else len(self.a))

    def _arrange_lines(self, pre: bool) -> None:
        axis = self.columns
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

    def _arrange_exceptions(self) -> None:
        rows = self.rows
        lacking = {r: rows.missing(r) for r in range(rows.positions)}
        lacking = {r: pair for r, pair in lacking.items() if bool(pair[1].any())}
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
        axis = self.columns
        columns = torch.zeros(axis.size, self.U, axis.positions, dtype=self.A.dtype)
        for v in range(self.U):
            for j in range(axis.positions):
                if 0 <= axis.place(j, v) < axis.size:
                    columns[axis.place(j, v), v, self.in_order(j)] = 1.0
        rows, width = self.rows, self.inputs * self.lines
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


# A few images with their columns unfolded, as `conv_geometry` arranges them, and gradients by them folded back.


class Im2Col:
    """n images, rows of the image first and images last; memory that is filled again for the next n images.

    Args:
        levels: of the network.
        shape: of an image.
        n: how many images.
        like: a tensor of the right type and device.
        constant: what multiplies the constants of the factors: 1, or 0 for directions, which see the linear part alone.

    Attributes:
        windows: for each level, the window of V that each row of its factors sees, (depth, columns n).
        lines: for each level, the lines that corrections of columns see, (2, depth, rows n).
    """

    def __init__(
        self, levels: list[Level], shape: tuple[int, ...], n: int, like: Tensor, constant: float = 1.0
    ) -> None:
        self.n, (self.inputs, self.height, self.width) = n, shape
        self.constant = constant
        self.reach = levels[0].rows.reach
        right = max(level.columns.place(level.columns.positions - 1, level.U) for level in levels)
        below = max(level.rows.place(level.rows.positions - 1, level.U) for level in levels)
        self.image = like.new_zeros(self.height, self.inputs, self.reach + max(right, self.width), n)
        self.inside = self.image[:, :, self.reach : self.reach + self.width]
        self.edges = like.new_zeros(2, self.reach + max(below, self.height), self.inputs * levels[0].lines, n)
        # All that is to be done for new images: copies, in this order.
        self.copies = [self._edge(side, edge) for side, edge in enumerate(levels[0].edges) if levels[0].lines]
        self.windows: list[list[Tensor]] = []
        self.lines: list[Tensor] = []
        for level in levels:
            V = like.new_full((level.depth, level.columns.positions * n), constant)
            self.windows.append([V[first:last] for first, last, *_ in level.windows])
            self.copies += self._columns(level, V)
            L = self._constant_lines(level)
            self.lines.append(L.flatten(2))
            if level.wide and level.lines:
                self.copies += self._lines(level, L)

    def fill(self, x: Tensor) -> None:
        """Take the images x, (n, inputs * height * width)."""
        self.inside.copy_(x.reshape(self.n, self.inputs, self.height, self.width).permute(2, 1, 3, 0))
        for into, source in self.copies:
            into.copy_(source)

    def _edge(self, side: int, edge: slice) -> tuple[Tensor, Tensor]:
        source = self.inside[:, :, edge]
        return self.edges[side, self.reach : self.reach + self.height].view(source.shape), source

    def _columns(self, level: Level, V: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Pieces of V, and the views of the image that they are copies of."""
        by_row, by_input, n, _ = self.image.stride()
        steps = [level.stride * 2**m * n for m in range(level.halvings + 1)]  # of the halves, and of what is left
        pieces = []
        for start, low, high in level.segments:
            sizes = high - low, self.inputs, level.U, *(2,) * level.halvings, level.last, n
            source = self.image.as_strided(sizes, (by_row, by_input, n, *steps, 1), low * by_row)
            block = self.inputs * level.U
            pieces.append((V[start : start + (high - low) * block].view(sizes), source))
        return pieces

    def _constant_lines(self, level: Level) -> Tensor:
        """Lines, all of them zero but for those that are constant."""
        L = self.image.new_zeros(2, level.lines_depth, level.rows.positions, self.n)
        first = level.lines_depth - len(level.exceptional)
        L[:, first - 1] = self.constant
        for number, r in enumerate(level.exceptional):
            L[:, first + number, r] = self.constant
        return L

    def _lines(self, level: Level, L: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Lines by taps of the rows, and those of exceptional rows by themselves."""
        by_side, by_row, n, _ = self.edges.stride()
        rows, width = level.rows.positions, self.inputs * level.lines
        sizes = 2, level.U, width, rows, n
        taps = self.edges.as_strided(sizes, (by_side, by_row, n, level.stride * by_row, 1))
        first = level.U * width
        found = [(L[:, :first].view(sizes), taps)]
        for number, (r, _, place) in enumerate(level.exceptions):
            start = first + number * width
            found.append((L[:, start : start + width, r], self.edges[:, self.reach + place]))
        return found


class Col2Im:
    """The gradient by n images, folded back from those by the windows and lines of `Im2Col`.

    Attributes:
        windows: as those of `Im2Col`, to be added to.
        lines: the same of the lines.
    """

    def __init__(self, levels: list[Level], shape: tuple[int, ...], n: int, like: Tensor) -> None:
        self.levels, self.n, (self.inputs, self.height, self.width) = levels, n, shape
        self.V = [like.new_zeros(level.depth, level.columns.positions * n) for level in levels]
        self.windows = [
            [V[first:last] for first, last, *_ in level.windows] for level, V in zip(levels, self.V, strict=True)
        ]
        self.lines = [like.new_empty(2, level.lines_depth, level.rows.positions * n) for level in levels]
        self.folding = [level.folding for level in levels]
        self.image = like.new_zeros(self.height, self.inputs, self.width, n)

    def clear(self) -> None:
        """Set all gradients to zero."""
        for V in self.V:
            V.zero_()

    def image_gradient(self) -> Tensor:
        """The gradient by the images, (n, inputs * height * width)."""
        self.image.zero_()
        for level, V, L, (columns, lines) in zip(self.levels, self.V, self.lines, self.folding, strict=True):
            for start, low, high in level.segments:
                count = (high - low) * self.inputs
                piece = V[start : start + count * level.U].view(count, -1, self.n)
                self.image[low:high].view(count, self.width, self.n).baddbmm_(columns.expand(count, -1, -1), piece)
            if level.wide and level.lines:
                found = torch.matmul(lines, L.view(2, -1, self.n))
                for side, edge in enumerate(level.edges):
                    self.image[:, :, edge] += found[side].view(self.height, self.inputs, level.lines, self.n)
        return self.image.permute(3, 1, 0, 2).reshape(self.n, -1)
