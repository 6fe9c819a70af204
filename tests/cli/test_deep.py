"""Commands that show networks, given deep ones: a network by name, and a module of a user's own in a file."""

import re

import pytest
import torch

import polybound as pb
from helpers.networks import Written, layers


def own():
    def forward(m, x):
        y = m.a(x.flatten(1)) * m.b(x.flatten(1))
        return m.c(y * y + y)

    return pb.polynomial(Written(forward, **layers(64, 6, "ab"), c=torch.nn.Linear(6, 10)), (1, 8, 8))


@pytest.fixture(params=["polynet", "own"])
def deep(request, tmp_path):
    torch.manual_seed(0)
    net = own() if request.param == "own" else pb.PolyNet((1, 8, 8), width=2, blocks=(1, 1), seed=0)
    path = tmp_path / f"{request.param}.safetensors"
    net.save(path)
    return path


def test_info_shows_maps_with_norms_and_where_values_lie(deep, cli):
    facts = cli("info", deep, "--json").json
    shown = cli("info", deep.name, cwd=deep.parent, columns=80)
    assert facts["degree"] == 4 and "nodes [" not in shown.out
    assert [line for line in re.sub(r"\x1b\[[\d;]*m", "", shown.out).splitlines() if len(line) > 80] == []
    network, found = pb.load(deep), {}
    graph = network.graph()
    x = torch.rand(200, 64) * 2 - 1
    graph.evaluate(pb.models.Numbers(), x, watch=found.__setitem__)
    assert len(facts["nodes"]) == len(graph.nodes)
    for number, node in enumerate(facts["nodes"]):
        values = found[number].detach()
        assert node["size"] == values.shape[1] and node["node"].split(" (")[0] in shown.out
        assert node["from"] <= float(values.min()) and float(values.max()) <= node["to"]
        step = getattr(graph.nodes[number], "map", None)
        assert (node["norm"] is None) == (step is None)
        if step is not None:
            largest = float(step.double().matrix().abs().sum(1).max())
            assert largest * (1 - 1e-12) <= node["norm"]


def test_bounds_and_cards_are_of_deep_networks_too(deep, cli):
    shown = cli("bounds", deep, columns=80)
    assert shown.code == 0 and "Lipschitz constant, l_inf, by intervals" in shown.out and "degree 4" in shown.out
    assert "Linear(" not in shown.out and "called in" not in shown.out
    card = cli("card", deep, "--dataset", "digits", "--images", 2, "--eps", 0.01)
    assert card.code == 0 and "| degree | 4 |" in card.out and "Lipschitz constant, l_inf, composed" in card.out
    facts = cli("card", deep, "--dataset", "digits", "--images", 2, "--eps", 0.01, "--json").json
    assert "graph" not in facts["network"] and sum(facts["certificates"][0][s] for s in ("verified", "falsified")) <= 2


def test_the_explorer_says_what_it_takes(deep, cli, tmp_path):
    done = cli("explore", deep, "--dataset", "digits", "--images", 1, "-o", tmp_path / "page.html")
    kind = type(pb.load(deep)).__name__
    assert done.code != 0 and done.err.count("\n") == 1 and not (tmp_path / "page.html").exists()
    assert f"a page computes chains of products (CCP, NCP, ConvCCP); this {kind} is none" in done.err


def test_reports_are_of_deep_runs_beside_chains(cli, tmp_path):
    for words in (("polynet", "--width", 2, "--blocks", "1"), ("pn-4",)):
        assert cli("train", "--dataset", "digits", "--epochs", 1, "--runs", tmp_path, "--model", *words).code == 0
    page = tmp_path / "report" / "page.html"
    page.parent.mkdir()
    done = cli("report", tmp_path, "-o", page, "--json")
    titles = [heading for table in done.json["sections"][0]["tables"] for _, heading in table["groups"]]
    assert done.code == 0 and page.is_file()
    assert titles == ["digits, PN-4, rank 16, 1 epochs", "digits, polynet, width 2, blocks [1], 1 epochs"]
