"""Rows of scores as a reproduction of the paper would have them."""

from polybound.evaluation import Score, paper_counts
from polybound.runs import DataSpec, ModelSpec, Spec
from polybound.training import Recipe


def row_like(spec, attack, protocol, percent):
    """A row of a table: so many percent of 10,000 test images."""
    counts = {"total": 10000, "available": 10000, "correct": round(100 * percent)}
    counted = paper_counts(attack, protocol)
    what = {"weights": spec.address, "dataset": spec.data.name, "digest": spec.data.digest, "split": "test"}
    how = {"held_out": 0.0, "attack": attack, "protocol": protocol, "attack_seed": 0, "defence": "", "counted": counted}
    score = Score(**what, **how, **counts)
    return {**spec.columns(), "run": spec.address, "epoch": spec.recipe.epochs, **score.as_dict()}


def spec_like(seed=0, model="pn-4", rank=0, data="fashion-mnist", **recipe):
    return Spec(DataSpec(data, "00ff"), ModelSpec(model, rank), Recipe.from_options(recipe), seed)


def rows_like_the_paper(shift=0.0, epochs=100, spread=1.0):
    """Scores as if a reproduction had been off by so many points, and its seeds by so many apart."""
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
