"""Mutants of honest proof files: whatever the check accepts is true, as brute force judges it."""

import json

import pytest

pytest.importorskip("flint")

from helpers.proof_mutants import campaign, outcome, subjects


@pytest.fixture(scope="module")
def honest():
    return subjects(images=4)


def test_honest_entries_are_accepted_and_true(honest):
    kinds = set()
    for subject in honest:
        for text in subject.texts:
            content = json.loads(subject.head_text) | {"images": [json.loads(text)]}
            assert outcome(subject, content) == "accepted and true"
            kinds |= {word for word in ("monotone", "split", "cap", "outside", "counterexample") if f'"{word}"' in text}
    assert len(kinds) >= 4


def test_what_is_accepted_is_true(honest):
    """`python tests/fuzz/proof_checker.py` has as many as there is time for."""
    counts, wrong = campaign(1500, 0, honest)
    assert not wrong
    assert min(counts[name] for name in ("refused by schema", "refused by proof", "accepted and true")) > 150
