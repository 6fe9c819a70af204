"""Tables and figures for tests of reports."""

from dataclasses import replace

from polybound.experiments import Published
from polybound.report.elements import Figure, Images, Line, Panel, Table

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
