"""Random specs and scores: every field of every part is drawn."""

from dataclasses import fields, replace

from hypothesis import strategies as st

import polybound as pb
from polybound.evaluation import Score
from polybound.runs import DataSpec, ModelSpec, Spec
from polybound.training import METHODS, OPTIMISERS, SCHEDULES, Adversary, Recipe

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
shares = st.one_of(st.just(0), st.floats(0, 0.99))
epochs = st.integers(0, 200)
whole = st.integers(1, 500)
seeds = st.integers(-3, 2**70)
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

METHOD_OPTIONS = {
    "none": {},
    "l2": {"weight": numbers},
    "jacobian": {"weight": numbers, "how": st.sampled_from(["random", "exact"])},
    "certified": {"eps": numbers, "start": epochs},
    "projection": {
        "bound": bounds,
        "norm": st.sampled_from(["inf", "2"]),
        "on": st.sampled_from(["weights", "operator", "product"]),
        "every": whole,
        "start": epochs,
    },
}
PARTS = {
    "data": {"name": words, "digest": digests, "samples": st.integers(0, 10**5), "held_out": shares},
    "model": {"name": st.sampled_from(["pn-4", "pn-10", "pn-conv", "ncp-4"]), "rank": st.integers(0, 100)},
    "optimiser": {"learning_rate": numbers},
    "schedule": {
        "epochs": whole,
        "batch_size": whole,
        "milestones": st.lists(epochs, max_size=3),
        "factor": numbers,
    },
    "adversary": {"attack": attacks, "protocol": protocols, "start": epochs},
}


def all_of(options):
    """The options of a part, each drawn."""
    return st.fixed_dictionaries(options)


methods = st.one_of(
    *(
        all_of(options).map(lambda drawn, name=name: METHODS.build({"name": name, **drawn}))
        for name, options in METHOD_OPTIONS.items()
    )
)
adversaries = all_of(PARTS["adversary"]).map(lambda drawn: Adversary(**drawn))
data_specs = all_of(PARTS["data"]).map(lambda drawn: DataSpec(**drawn))
model_specs = all_of(PARTS["model"]).map(lambda drawn: ModelSpec(**drawn))
optimisers = all_of(PARTS["optimiser"]).map(lambda drawn: OPTIMISERS.build({"name": "sgd", **drawn}))
schedules = all_of(PARTS["schedule"]).map(lambda drawn: SCHEDULES.build({"name": "steps", **drawn}))


@st.composite
def recipes(draw):
    method = draw(methods)
    adversary = draw(st.none() | adversaries) if method.takes_adversary else None
    return Recipe(method, adversary, draw(optimisers), draw(schedules))


specs = st.builds(Spec, data_specs, model_specs, recipes(), seeds)


def _changed(draw, part, options):
    """A part with one option drawn anew, and that option's name."""
    name = draw(st.sampled_from(sorted(options)))
    return replace(part, **{name: draw(options[name])}), name


@st.composite
def pairs(draw, seed=True):
    """Two specs that differ in one field, or in whether there is an adversary, or in nothing; and the column of it."""
    spec = draw(specs)
    recipe = spec.recipe
    kinds = ["data", "model", "optimiser", "schedule", "method", "adversary"] + (["seed"] if seed else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "seed":
        return spec, replace(spec, seed=draw(seeds)), "seed"
    if kind in ("data", "model"):
        part, name = _changed(draw, getattr(spec, kind), PARTS[kind])
        return spec, replace(spec, **{kind: part}), kind if name == "name" else f"{kind}.{name}"
    if kind == "method" and not recipe.method.options():
        kind = "adversary"
    if kind == "adversary":
        options = PARTS["adversary"]
        if recipe.adversary is None:
            other = draw(adversaries) if recipe.method.takes_adversary else None
            return spec, replace(spec, recipe=replace(recipe, adversary=other)), "adversary"
        name = draw(st.sampled_from([*options, "none"]))
        if name == "none":
            return spec, replace(spec, recipe=replace(recipe, adversary=None)), "adversary"
        given = {
            "attack": recipe.adversary.attack,
            "protocol": recipe.adversary.protocol,
            "start": recipe.adversary.start,
        }
        other = Adversary(**given | {name: draw(options[name])})
        return (
            spec,
            replace(spec, recipe=replace(recipe, adversary=other)),
            "adversary" if name == "attack" else f"adversary.{name}",
        )
    options = METHOD_OPTIONS[recipe.method.name] if kind == "method" else PARTS[kind]
    part, name = _changed(draw, getattr(recipe, kind), options)
    return spec, replace(spec, recipe=replace(recipe, **{kind: part})), f"{kind}.{name}"


@st.composite
def scores(draw):
    available = draw(st.integers(1, 10**6))
    total = draw(st.integers(1, available))
    return Score(
        **{name: draw(values) for name, values in SCORE.items()},
        total=total,
        available=available,
        correct=draw(st.integers(0, total)),
    )


SCORE = {
    "weights": digests,
    "dataset": words,
    "digest": digests,
    "split": st.sampled_from(["test", "validation", "train"]),
    "held_out": st.floats(0, 0.99),
    "attack": st.one_of(st.sampled_from(["clean", "certified-0.1", "fgsm-0.1", "fgsm-0.10001"]), words),
    "protocol": st.sampled_from(["-", "sound", "published"]),
    "attack_seed": st.integers(0, 2**40),
    "defence": st.one_of(
        st.just(""),
        st.sampled_from(["gaussian", "median", "1", "gaussian-0.5"]),
        words.filter(lambda word: word != "none"),
    ),
    "counted": st.sampled_from(["-", "robust", "attacked", "verified"]),
    "per_class": st.sampled_from(["", "1/2", "1/2 3/4"]),
}
assert set(SCORE) | {"total", "available", "correct"} == {field.name for field in fields(Score)}
