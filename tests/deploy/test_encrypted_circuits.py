"""Circuits of graphs, without encryption: stages, layouts and diagonals compute what the graph computes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.encrypted_networks import PlainSlots
from helpers.graphs import graphs
from polybound.deploy.encrypted.graph.circuit import design
from polybound.deploy.encrypted.graph.cost import Cost
from polybound.deploy.encrypted.graph.execute import Evaluation
from polybound.deploy.encrypted.graph.moduli import Moduli
from polybound.deploy.encrypted.graph.stages import stages_of
from polybound.errors import PolyboundError

pytest.importorskip("tenseal")


def simulated(graph, x, slots):
    """The logits that a circuit computes on vectors of slots, and the circuit."""
    stages = stages_of(graph)
    circuit = design(stages, slots, Cost(2 * slots))
    drops, zeros, engine = (0,) + (1,) * stages.depth, (0.0,) * (stages.depth + 1), PlainSlots(slots)
    evaluation = Evaluation(circuit, Moduli(2 * slots, 0, 0, drops, zeros, 0.0), engine)
    logits = []
    for image in x:
        found = evaluation(engine, list(circuit.layouts[0].place(image, slots)))
        slots_of = np.concatenate(found)
        address = circuit.layouts[-1].address
        logits.append(slots_of[address // circuit.layouts[-1].period * slots + address % circuit.layouts[-1].period])
    return np.array(logits) + stages.output.constant, circuit


@given(graphs(most=14), st.integers(0, 99))
def test_random_graphs_are_evaluated_slot_by_slot(graph, seed):
    x = torch.rand(2, graph.features, generator=torch.Generator().manual_seed(seed)).double() - 0.5
    want = graph.double()(x).numpy()
    got, _ = simulated(graph, x.numpy(), 64)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * (1 + np.abs(want).max()))


@pytest.mark.parametrize(("shape", "blocks"), [((3, 16, 16), (1, 1)), ((1, 14, 14), (1, 1)), ((1, 8, 8), (1, 2))])
def test_residual_networks_take_one_level_a_block_and_sum_poolings_by_rotations(shape, blocks):
    net = pb.PolyNet(shape, width=4, blocks=blocks, seed=0).eval()
    graph = net.graph()
    x = torch.rand(2, graph.features).double()
    got, circuit = simulated(graph, x.numpy(), 512)
    np.testing.assert_allclose(got, graph.double()(x).numpy(), rtol=1e-9, atol=1e-11)
    assert circuit.stages.depth == sum(blocks) == len(circuit.stages.values) - 1
    head = circuit.transfers[-1][0]
    assert sum(bool(fold.step) for fold in head.folds) >= 2  # the mean over the last image


def test_several_inputs_are_refused():
    from polybound.models import Builder

    builder = Builder()
    x, y = builder.input((2,)), builder.input((2,))
    with pytest.raises(PolyboundError, match="takes one input: this network has 2"):
        stages_of(builder.finish(builder.product(x, y)))
