"""The README is short, and its Python runs as it stands; one version everywhere, and how to cite it."""

import re
from pathlib import Path

import pytest
import yaml

import contents
import polybound as pb
import smoke
from generator.results import VERDICTS, claim, share
from polybound.evaluation import paper_counts
from polybound.experiments import compare, read_scores

README = Path(__file__).parents[2] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def run(code, names):
    exec(compile(code, "README.md", "exec"), names)


def test_first_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(blocks("python")[0], {})
    printed = capsys.readouterr().out
    assert "inside its bounds: True" in printed and "Row-wise bound" in printed
    accuracy = float(re.search(r"test accuracy ([\d.]+)", printed).group(1))
    assert accuracy > 0.9


def test_other_examples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"pb": pb, "test": pb.data.load_digits("test")}
    for block in blocks("python")[1:]:
        if "PolynomialClassifier" not in block:
            run(block, names)
    printed = capsys.readouterr().out
    assert "Theorem 2" in printed and "images=100" in printed
    # Of a trained network: most are verified.
    assert names["found"].count("verified") > 60


def test_own_table():
    (block,) = [block for block in blocks("python") if "PolynomialClassifier" in block]
    names = {"pb": pb}
    run(block, names)
    classifier, X, y = names["classifier"], names["X"], names["y"]
    certified = classifier.certified_score(X[400:], y[400:], eps=0.05 * X.std(axis=0))
    assert 0.5 < certified <= classifier.score(X[400:], y[400:])


def test_numbers_of_the_first_screen():
    """What the text says of the demo is true of the networks that it made, and that come with the package."""
    data, said = pb.data.load_digits("test"), " ".join(README.read_text().split())
    plain, projected = pb.example("digits"), pb.example("digits-bound-1")
    pgd = [pb.evaluate(model, data, pb.PGD(0.2, 20)).find("pgd-0.2-20-0.025").accuracy for model in (plain, projected)]
    proven = pb.certified_accuracy(projected, data, 0.2, budget=0.0)
    assert f"PGD leaves it {100 * pgd[1]:.0f} % instead of {100 * pgd[0]:.0f} %" in said
    assert f"{100 * proven:.0f} % are proven" in said
    assert round(100 * float(pb.accuracy(plain, data) - pb.accuracy(projected, data))) == 5


def test_it_is_short_and_its_links_lead_somewhere():
    text = README.read_text()
    assert len(text.splitlines()) < 120
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (README.parent / target).exists(), target


def test_first_screen_has_the_two_commands_and_a_picture():
    first = README.read_text().splitlines()[:30]
    assert any("make demo" in line for line in first) and any("make test" in line for line in first)
    picture = re.search(r"!\[[^\]]+\]\(([^)]+)\)", "\n".join(first)).group(1)
    assert (README.parent / picture).stat().st_size > 10_000


ROOT = Path(__file__).parents[2]


def test_one_version_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert pb.__version__ == str(cited["version"]) == released[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+", pb.__version__)


def test_the_citation_names_the_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["license"] == "MIT" and cited["title"] and cited["message"]
    (paper,) = cited["references"]
    assert paper["title"] == "Controlling the Complexity and Lipschitz Constant improves Polynomial Nets"
    assert [one["family-names"] for one in paper["authors"]] == ["Zhu", "Latorre", "Chrysos", "Cevher"]


def test_what_a_wheel_needs_is_there():
    """`make dist` asks for these files in the wheel, `make smoke` where it is installed."""
    package = Path(pb.__file__).parent
    asked = {*contents.NEEDED, *smoke.NEEDED}
    assert [name for name in sorted(asked) if not (package / name).is_file()] == []


SCORES = Path(__file__).parents[2] / "docs" / "results" / "scores.csv"


@pytest.fixture(scope="module")
def scores():
    return read_scores(SCORES)


@pytest.fixture(scope="module")
def found(scores):
    return [each for each in compare(scores) if each.verdict in VERDICTS]


def test_the_published_values_that_are_met(found):
    """Below this, something that was met is so no longer."""
    values, met = {each.paper.key for each in found}, [each for each in found if each.verdict == "within"]
    assert len(met) >= 260 and len(found) >= 288
    assert len({each.paper.key for each in met}) >= 241 and len(values) >= 268


def test_no_published_value_has_two_verdicts(found):
    verdicts = {}
    for each in found:
        verdicts.setdefault(each.paper.key, set()).add((each.verdict, each.variant))
    assert [key for key, kinds in verdicts.items() if len(kinds) > 1] == []


@pytest.mark.parametrize("page", ["README.md", "docs/results/README.md"])
def test_the_counts_in_the_prose_are_those_of_the_scores(found, page):
    once = list({each.paper.key: each for each in found}.values())
    models = {name: share(each for each in once if each.paper.model == name) for name in ("PN-4", "PN-10", "PN-Conv")}
    met, _, total = share(once).split()
    said = {
        "README.md": [
            f"Of the {total} published values covered so far, {met} are met",
            f"for PN-4 {models['PN-4']}, for PN-Conv {models['PN-Conv']},",
        ],
        "docs/results/README.md": [
            f"**{met} of the {total} published values that were run are met",
            f"for PN-4 {models['PN-4']} are met, for PN-10 {models['PN-10']},",
            f"for PN-Conv {models['PN-Conv']} (one seed",
            f"`polybound compare` has {share(found)},",
            f"of the {int(total) - int(met)} misses are too low",
        ],
    }
    text = " ".join((SCORES.parents[2] / page).read_text(encoding="utf-8").split())
    assert [words for words in said[page] if words not in text] == []


def test_the_table_of_the_claim_is_that_of_the_scores(scores):
    table = claim(scores)
    assert table in (SCORES.parent / "README.md").read_text(encoding="utf-8")
    assert all(
        f"| {model}, {data} |" in table for model in ("PN-4", "PN-10", "PN-Conv") for data in ("K-MNIST", "MNIST")
    )
    assert "| PN-Conv, CIFAR-10 |" in table


def test_every_score_says_what_it_is_of(scores):
    for row in scores:
        assert row["digest"] == row["data.digest"] and row["dataset"] == row["data"]
        assert row["counted"] == paper_counts(row["attack"], row["protocol"])
        assert 0 <= row["correct"] <= row["total"] <= row["available"]
        assert row["epoch"] <= row["schedule.epochs"]


def test_no_score_stands_twice(scores):
    names = ("run", "epoch", "split", "attack", "protocol", "attack_seed", "defence", "counted", "total")
    assert len({tuple(row[name] for name in names) for row in scores}) == len(scores)


def test_an_address_is_that_of_its_columns(scores):
    from polybound.runs import Spec

    seen = {}
    for row in scores:
        seen.setdefault(row["run"], row)
    for address, row in seen.items():
        spec = {"seed": row["seed"], "adversary": None}
        for part in ("data", "model", "method", "optimiser", "schedule", "adversary"):
            if part in row:
                head = "attack" if part == "adversary" else "name"
                options = {name.partition(".")[2]: row[name] for name in row if name.startswith(f"{part}.")}
                spec[part] = {head: row[part], **options}
        assert Spec.from_dict(spec).address == address
