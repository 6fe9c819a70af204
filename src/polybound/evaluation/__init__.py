"""Evaluation: accuracy with its interval, clean and under attack, each number with its protocol."""

from polybound.evaluation.evaluate import evaluate
from polybound.evaluation.score import Evaluation, Examples, Score
from polybound.evaluation.stored import evaluate_run, evaluate_runs, read_scores
from polybound.evaluation.wilson import wilson

__all__ = ["Evaluation", "Examples", "Score", "evaluate", "evaluate_run", "evaluate_runs", "read_scores", "wilson"]
