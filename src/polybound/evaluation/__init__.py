"""Evaluation: accuracy with its interval, clean and under attack, each number with everything that it is about.

evaluate     what is asked of some networks, measured; notes, examples
measure      one accuracy after another, of stacks of networks; what is known is not measured again
score        one measurement in counts, with its identity
table        rows of scores, and the cells that are means over seeds
difference   how much more accurate one network is than another
"""

from polybound.evaluation.difference import Difference as Difference
from polybound.evaluation.difference import difference as difference
from polybound.evaluation.evaluate import Evaluation as Evaluation
from polybound.evaluation.evaluate import Examples as Examples
from polybound.evaluation.evaluate import evaluate as evaluate
from polybound.evaluation.evaluate import evaluate_models as evaluate_models
from polybound.evaluation.evaluate import row_facts as row_facts
from polybound.evaluation.measure import EvaluatedModel as EvaluatedModel
from polybound.evaluation.measure import EvaluationSpec as EvaluationSpec
from polybound.evaluation.measure import Metric as Metric
from polybound.evaluation.measure import Progress as Progress
from polybound.evaluation.score import CLEAN as CLEAN
from polybound.evaluation.score import NODES as NODES
from polybound.evaluation.score import Score as Score
from polybound.evaluation.score import certified_name as certified_name
from polybound.evaluation.score import certified_radius_of as certified_radius_of
from polybound.evaluation.score import paper_counts as paper_counts
from polybound.evaluation.score import short_digest as short_digest
from polybound.evaluation.score import wilson as wilson
from polybound.evaluation.table import ATTACK_COLUMNS as ATTACK_COLUMNS
from polybound.evaluation.table import SEED_COLUMNS as SEED_COLUMNS
from polybound.evaluation.table import Cell as Cell
from polybound.evaluation.table import MixedError as MixedError
from polybound.evaluation.table import Row as Row
from polybound.evaluation.table import Table as Table
from polybound.evaluation.table import best_place as best_place
from polybound.evaluation.table import column_label as column_label
from polybound.evaluation.table import differing as differing
from polybound.evaluation.table import images_label as images_label
from polybound.evaluation.table import labels as labels
from polybound.evaluation.table import network_labels as network_labels
from polybound.evaluation.table import read_table as read_table
from polybound.evaluation.table import score_of as score_of
from polybound.evaluation.table import value_label as value_label
