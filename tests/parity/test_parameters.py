"""Two routes to the parameters of a model: its operators, and the closed form of its dims."""

import pytest
from oracles.graph_parameters import graph_parameters
from sampled import one_in

from meshwright.catalog.models import load_model, model_names
from meshwright.graph.parameters import count_parameters
from meshwright.graph.transformer import build_graph


@pytest.mark.parametrize("name", one_in(4, model_names()))
def test_operators_hold_what_the_closed_form_counts(name):
    model = load_model(name)
    assert graph_parameters(build_graph(model)) == count_parameters(model).num_params
