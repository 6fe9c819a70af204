"""Evaluation: accuracy with its interval, clean and under attack, each number with everything that it is about."""

from polybound.evaluation.difference import Difference, difference
from polybound.evaluation.evaluate import (
    Evaluation,
    Examples,
    evaluate,
    evaluate_subjects,
    keep_examples,
    questions_for,
    reader_notes,
    row_facts,
    score_of,
)
from polybound.evaluation.intervals import output_intervals
from polybound.evaluation.labels import column_label, labels, network_labels, value_label
from polybound.evaluation.masking import masking_notes
from polybound.evaluation.measure import Progress, Question, Subject, count_images, measure
from polybound.evaluation.score import (
    CLEAN,
    NODES,
    Radius,
    Score,
    certified_name,
    certified_radius_of,
    paper_counts,
    read_radius,
    short_digest,
    wilson,
)
from polybound.evaluation.table import Cell, MixedError, Row, Table, best_place, differing, read_table

__all__ = [
    "CLEAN",
    "NODES",
    "Cell",
    "Difference",
    "Evaluation",
    "Examples",
    "MixedError",
    "Progress",
    "Question",
    "Radius",
    "Row",
    "Score",
    "Subject",
    "Table",
    "best_place",
    "certified_name",
    "certified_radius_of",
    "column_label",
    "count_images",
    "difference",
    "differing",
    "evaluate",
    "evaluate_subjects",
    "keep_examples",
    "labels",
    "masking_notes",
    "measure",
    "network_labels",
    "output_intervals",
    "paper_counts",
    "questions_for",
    "read_radius",
    "read_table",
    "reader_notes",
    "row_facts",
    "score_of",
    "short_digest",
    "value_label",
    "wilson",
]
