"""Mutants of honest proof files, about chains and about deep networks: whatever the check accepts is true.

`python tests/fuzz/proof_checker.py` has as many as there is time for.
"""

import json

import pytest

pytest.importorskip("flint")

from helpers.graph_proofs import graph_subjects
from helpers.proof_mutants import campaign, outcome, subjects

FILES = {
    "chains": (subjects, ("monotone", "split", "cap", "outside", "counterexample"), 1500),
    "deep": (graph_subjects, ("split", "interval", "planes", "generators", "layers", "whole", "counterexample"), 500),
}


@pytest.fixture(scope="module", params=FILES)
def honest(request):
    make, words, count = FILES[request.param]
    return list(make(images=4)), words, count


def test_honest_entries_are_accepted_and_true(honest):
    kinds, (files, words, _) = set(), honest
    for subject in files:
        for text in subject.texts:
            content = json.loads(subject.head_text) | {"images": [json.loads(text)]}
            nothing = json.loads(text)["status"] == "undecided"
            assert outcome(subject, content) == ("accepted, nothing claimed" if nothing else "accepted and true")
            kinds |= {word for word in words if f'"{word}"' in text}
    assert len(kinds) >= len(words) - 2 + (len(words) == 5)


def test_what_is_accepted_is_true(honest):
    files, _, count = honest
    counts, wrong = campaign(count, 0, files)
    assert not wrong
    assert min(counts[name] for name in ("refused by schema", "refused by proof", "accepted and true")) > count // 10
