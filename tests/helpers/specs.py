"""Random specs and scores: every field of every part is drawn."""

from dataclasses import fields, replace

from hypothesis import strategies as st

import polybound as pb
from polybound.evaluation import Score
from polybound.runs import DataSpec, ModelSpec, Spec
from polybound.training import LOSSES, METHODS, OPTIMISERS, SCHEDULES, Adversary, CrossEntropy, Recipe

# Names that CSV, JSON and labels could take for something else.
words = st.one_of(
    st.sampled_from(
        ["digits", "folder:my data.npz", "1", "1e5", "null", "true", "a,b", 'say "x"', "[1]", "é", "{}", "-"]
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=8),
)
digests = st.one_of(
    st.text("0123456789abcdef", min_size=16, max_size=16), st.just("1234567890123456"), st.just("12e4567890123456")
)
# Whole numbers, too, and neighbours that few digits do not tell apart.
numbers = st.one_of(
    st.integers(0, 5),
    st.floats(0, 1e6),
    st.sampled_from([0.0, -0.0, 0.1, 0.1 + 1e-9, 1e-9, 1.0, 1, 123456.7, 123456.8, 1e22, 10**22]),
)
epochs = st.integers(0, 200)
whole = st.integers(1, 500)
seeds = st.integers(1 - 2**62, 2**62 - 1)
bounds = st.one_of(
    numbers,
    st.lists(numbers, min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(["C", "U1", "U2", "V"]), numbers, min_size=1),
    st.dictionaries(st.sampled_from(["C", "U1"]), st.lists(numbers, min_size=1, max_size=2), min_size=1),
)
attacks = st.sampled_from(
    [
        *("fgsm-0.1", "fgsm-0.1:norm=2", "fgsm-0.2", "pgd-0.1-20-0.01", "pgd-0.1-20-0.01:random_start=false", "tpgd-1"),
        *("pgd-0.1-21-0.01", "pgd-0.1-20-0.02", "apgd-0.1", "square-0.1", pb.PGD(0.1, 20, 0.01, restarts=2)),
    ]
)
protocols = st.sampled_from(["sound", "published"])

starts = st.one_of(epochs, st.floats(0, 0.99))
below_one = st.one_of(st.just(0), st.floats(0, 0.99))
up_to_one = st.one_of(st.sampled_from([0, 1]), st.floats(0, 1))
steps_of = {"epochs": whole, "batch_size": whole}
certified_of = dict.fromkeys(("weight", "remainder", "ramp"), up_to_one)
certified_of |= {"eps": numbers, "rivals": epochs, "start": starts}
betas_of = {"beta1": below_one, "beta2": below_one}
METHOD_OPTIONS = {
    "none": {},
    "l2": {"weight": numbers},
    "jacobian": {"weight": numbers, "how": st.sampled_from(["random", "exact"])},
    "certified": certified_of,
    "certified-projection": {**certified_of, "bound": numbers, "every": whole},
    "projection": {
        "bound": bounds,
        "norm": st.sampled_from(["inf", "2"]),
        "on": st.sampled_from(["weights", "operator", "product"]),
        "every": whole,
        "start": starts,
    },
}
OPTIMISER_OPTIONS = {
    "sgd": {"learning_rate": numbers},
    "momentum": {"learning_rate": numbers, "momentum": below_one, "weight_decay": numbers},
    "adamw": {"learning_rate": numbers, **betas_of, "weight_decay": numbers},
    "muon": {"learning_rate": numbers, "beta": below_one, **betas_of, "weight_decay": numbers},
}
SCHEDULE_OPTIONS = {
    "steps": {**steps_of, "milestones": st.lists(epochs, max_size=3), "factor": numbers},
    "cosine": steps_of,
    "constant": steps_of,
    "one-cycle": {**steps_of, "rise": below_one},
}
LOSS_OPTIONS = {"cross-entropy": {"label_smoothing": below_one}, "squared": {}}
OPTIONS = {"method": METHOD_OPTIONS, "optimiser": OPTIMISER_OPTIONS, "schedule": SCHEDULE_OPTIONS, "loss": LOSS_OPTIONS}
REGISTRIES = {"method": METHODS, "optimiser": OPTIMISERS, "schedule": SCHEDULES, "loss": LOSSES}
PARTS = {
    "data": {"name": words, "digest": digests, "samples": st.integers(0, 10**5), "held_out": below_one},
    "model": {"name": st.sampled_from(["pn-4", "pn-10", "pn-conv", "ncp-4"]), "rank": st.integers(0, 100)},
    "adversary": {"attack": attacks, "protocol": protocols, "start": starts},
}
EXTRAS = {
    "augment": st.sampled_from(["", "flip", "flip, crop-4", "crop-4, flip", "crop-4:border=zero", ("shift-1", "flip")]),
    "clip": numbers,
    "precision": st.sampled_from(["float32", "bfloat16"]),
}
"""What a recipe has beside its parts."""


def all_of(options):
    """The options of a part, each drawn."""
    return st.fixed_dictionaries(options)


def part_of(kind, name):
    return all_of(OPTIONS[kind][name]).map(lambda drawn: REGISTRIES[kind].build({"name": name, **drawn}))


def any_part(kind):
    return st.one_of(*(part_of(kind, name) for name in OPTIONS[kind]))


methods = any_part("method")
adversaries = all_of(PARTS["adversary"]).map(lambda drawn: Adversary(**drawn))
data_specs = all_of(PARTS["data"]).map(lambda drawn: DataSpec(**drawn))
model_specs = all_of(PARTS["model"]).map(lambda drawn: ModelSpec(**drawn))
perhaps_adversaries = st.none() | adversaries


@st.composite
def recipes(draw, adversaries=perhaps_adversaries, **parts):
    """Recipes; parts that are given are drawn from, others from all."""
    given = {kind: parts.get(kind, any_part(kind)) for kind in OPTIONS}
    method = draw(given["method"].filter(lambda method: "loss" not in parts or not method.own_loss))
    loss = CrossEntropy() if method.own_loss else draw(given["loss"])
    adversary = draw(adversaries) if method.takes_adversary and loss.classifies else None
    extras = {name: draw(values) for name, values in EXTRAS.items()}
    return Recipe(method, adversary, draw(given["optimiser"]), draw(given["schedule"]), loss, **extras)


def specs_of(recipes):
    return st.builds(Spec, data_specs, model_specs, recipes, seeds)


specs = specs_of(recipes())

FIELDS = [
    *((kind, option) for kind in PARTS for option in PARTS[kind]),
    *((kind, option, name) for kind in OPTIONS for name, options in OPTIONS[kind].items() for option in options),
    *((name,) for name in EXTRAS),
    ("adversary", "none"),
    ("seed",),
]
"""All that two specs can differ in: a part and one of its options."""


def column_of(field):
    """The column in which specs that differ in a field differ."""
    kind, option = field[0], field[1] if len(field) > 1 else ""
    return kind if option in ("", "name", "attack", "none") else f"{kind}.{option}"


@st.composite
def pairs_in(draw, field):
    """Two specs that differ in this field, or in nothing."""
    kind = field[0]
    if kind == "seed":
        spec = draw(specs)
        return spec, replace(spec, seed=draw(seeds))
    if kind in EXTRAS:
        spec = draw(specs)
        return spec, replace(spec, recipe=replace(spec.recipe, **{kind: draw(EXTRAS[kind])}))
    option = field[1]
    if kind == "adversary":
        able = methods.filter(lambda method: method.takes_adversary)
        spec = draw(specs_of(recipes(adversaries, method=able, loss=part_of("loss", "cross-entropy"))))
        mine = spec.recipe.adversary
        other = None
        if option != "none":
            given = {"attack": mine.attack, "protocol": mine.protocol, "start": mine.start}
            other = Adversary(**given | {option: draw(PARTS[kind][option])})
        return spec, replace(spec, recipe=replace(spec.recipe, adversary=other))
    if kind in ("data", "model"):
        spec = draw(specs)
        part = replace(getattr(spec, kind), **{option: draw(PARTS[kind][option])})
        return spec, replace(spec, **{kind: part})
    spec = draw(specs_of(recipes(**{kind: part_of(kind, field[2])})))
    part = replace(getattr(spec.recipe, kind), **{option: draw(OPTIONS[kind][field[2]][option])})
    return spec, replace(spec, recipe=replace(spec.recipe, **{kind: part}))


@st.composite
def scores(draw):
    available = draw(st.integers(1, 10**6))
    total = draw(st.integers(1, available))
    correct = draw(st.integers(0, total))
    counts = {"total": total, "available": available, "correct": correct}
    per_class = draw(st.sampled_from(["", f"{correct}/{total}", f"{correct}/{correct} 0/{total - correct}"]))
    return Score(**{name: draw(values) for name, values in SCORE.items()}, **counts, per_class=per_class)


SCORE = {
    "weights": digests,
    "dataset": words,
    "digest": digests,
    "split": st.sampled_from(["test", "validation", "train"]),
    "held_out": st.floats(0, 0.99),
    "attack": st.one_of(st.sampled_from(["clean", "certified-0.1:nodes=256", "fgsm-0.1", "fgsm-0.10001"]), words),
    "protocol": st.sampled_from(["-", "sound", "published"]),
    "attack_seed": st.integers(0, 2**40),
    "defence": st.one_of(
        st.just(""),
        st.sampled_from(["gaussian", "median", "1", "gaussian-0.5"]),
        words.filter(lambda word: word != "none"),
    ),
    "counted": st.sampled_from(["-", "robust", "attacked", "verified"]),
}
assert set(SCORE) | {"total", "available", "correct", "per_class"} == {field.name for field in fields(Score)}
