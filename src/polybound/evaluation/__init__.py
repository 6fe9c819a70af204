"""Evaluation: accuracy with its interval, clean and under attack, each number with everything that it is about.

evaluate     what is asked of some networks, measured; notes, examples, intervals of outputs
measure      one accuracy after another, of stacks of networks; what is known is not measured again
score        one measurement in counts, with its identity
table        rows of scores, and the cells that are means over seeds
difference   how much more accurate one network is than another
"""

from polybound.evaluation.difference import Difference, difference
from polybound.evaluation.evaluate import Evaluation, Examples, evaluate, evaluate_models, row_facts
from polybound.evaluation.measure import EvaluatedModel, EvaluationSpec, Metric, Progress, count_images
from polybound.evaluation.score import (
    CLEAN,
    NODES,
    Score,
    certified_name,
    certified_radius_of,
    paper_counts,
    read_radius,
    short_digest,
    wilson,
)
from polybound.evaluation.table import (
    ATTACK_COLUMNS,
    SEED_COLUMNS,
    Cell,
    MixedError,
    Row,
    Table,
    best_place,
    column_label,
    differing,
    images_label,
    labels,
    network_labels,
    read_table,
    score_of,
    value_label,
)

__all__ = [
    "ATTACK_COLUMNS",
    "CLEAN",
    "NODES",
    "SEED_COLUMNS",
    "Cell",
    "Difference",
    "EvaluatedModel",
    "Evaluation",
    "EvaluationSpec",
    "Examples",
    "Metric",
    "MixedError",
    "Progress",
    "Row",
    "Score",
    "Table",
    "best_place",
    "certified_name",
    "certified_radius_of",
    "column_label",
    "count_images",
    "difference",
    "differing",
    "evaluate",
    "evaluate_models",
    "images_label",
    "labels",
    "network_labels",
    "paper_counts",
    "read_radius",
    "read_table",
    "row_facts",
    "score_of",
    "short_digest",
    "value_label",
    "wilson",
]
