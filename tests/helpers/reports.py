"""Rows of scores as a reproduction of the paper would have them; tables and figures for tests of reports."""

from dataclasses import replace

from polybound.evaluation import Score, paper_counts
from polybound.experiments import Published
from polybound.report.elements import Figure, Images, Line, Panel, Table
from polybound.runs import DataSpec, ModelSpec, Spec
from polybound.training import Recipe


def row_like(spec, attack, protocol, percent):
    """A row of a table: a percentage of 10,000 test images."""
    counts = {"total": 10000, "available": 10000, "correct": round(100 * percent)}
    counted = paper_counts(attack, protocol)
    what = {"weights": spec.address, "dataset": spec.data.name, "digest": spec.data.digest, "split": "test"}
    how = {"held_out": 0.0, "attack": attack, "protocol": protocol, "attack_seed": 0, "defence": "", "counted": counted}
    score = Score(**what, **how, **counts)
    return {**spec.columns(), "run": spec.address, "epoch": spec.recipe.epochs, **score.as_dict()}


def spec_like(seed=0, model="pn-4", rank=0, data="fashion-mnist", **recipe):
    return Spec(DataSpec(data, "00ff"), ModelSpec(model, rank), Recipe.from_options(recipe), seed)


def rows_like_the_paper(shift=0.0, epochs=100, spread=1.0):
    """Scores as if a reproduction had been off by some points, and its seeds by others."""
    plain, wide, tight = ({"method": "none"}, *({"method": "projection", "bound": bound} for bound in (2.0, 1.0)))
    return [
        row_like(spec_like(seed, epochs=epochs, **method), attack, protocol, value + shift + spread * seed)
        for method, attack, protocol, value in (
            (plain, "clean", "-", 87.28),
            (plain, "fgsm-0.1", "published", 12.92),
            (wide, "fgsm-0.1", "published", 20.0),
            (tight, "fgsm-0.1", "published", 46.43),
            (tight, "fgsm-0.1", "sound", 60.0),
        )
        for seed in (-1, 0, 1)
    ]


TABLE = Table(
    "A table",
    ["attack", "value", "none & more", "projection", "Jacobian", "L2"],
    [
        ["clean", "paper", *[Published("t", "", "", "", "clean", 87.28, 0.18)] * 4],
        ["clean", "here", *["87.16 ± 0.11"] * 3, ""],
        ["<b>", "here", "1", "2", "3", "4"],
    ],
    [(0, "Fashion-MNIST"), (2, "K_MNIST")],
    frozenset({(1, 2)}),
    ["A note with </script> in it.", "Bold: the highest."],
    verdicts={(1, 2): "met", (1, 3): "missed", (1, 4): "not published", (1, 5): "not run"},
    lead=2,
)

BOUNDS = [0.2, 0.4, 1.0, 10.0, 100.0, 100000.0]

LINES = [
    Line("one", BOUNDS, [10, 20, 60, 30, 20, 20], [1, 0, 2, 0, 0, 0], [f"{bound:g}" for bound in BOUNDS]),
    Line("two", BOUNDS, [5, 10, 30, 20, 10, 10]),
]

PANEL = Panel(
    "A </script> panel",
    "bound",
    "accuracy in %",
    LINES,
    log_x=True,
    from_zero=True,
    published=[Line("one", [1.0], [55.0], kind="marks")],
)

LOWER = replace(PANEL, title="Lower", lines=[Line("two", [1.0, 10.0], [2.0, 3.0])], published=())

FIGURE = Figure("A figure", [PANEL, LOWER], notes=["What the stars are."])

CURVE = Figure("Another", [Panel("Loss", "epoch", "value", [Line("l", list(range(100)), list(range(1, 101)))])])

PICTURES = Figure(
    "Samples", images=[Images("Set", [("cat (0)", [[[0, 255], [255, 0]]]), ("dog (1)", [[[9]], [[9]], [[9]]])])]
)

HEADLINE = Figure(
    "All values", [Panel("P", "published", "here", [Line("met", [1.0, 2.0], [1.0, 2.1], (), (), "marks", ["a", "b"])])]
)

RUN = "window.hacked = (window.hacked || 0) + 1"
HOSTILE = (
    f"<script>{RUN}</script><img src=x onerror='{RUN}'><svg onload='{RUN}'></svg></script></style><b>b</b>"
    f'<a href="javascript:{RUN}">a</a>$\\frac{{\'"&amp;{{{{7*7}}}}'
)
