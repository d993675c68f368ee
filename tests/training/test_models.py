"""The models are the paper's: sizes to the parameter, weights decided by the seed alone."""

from __future__ import annotations

from typing import Any

import pytest

from jsam.errors import InputError
from tests.conftest import require

torch = require("torch", extra="train")

from jsam.training.models import MODEL_NAMES, SIZED, build_model, check_model  # noqa: E402

SHAPES = {
    "mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "digits": (1, 8, 8),
    "linear": (1, 8, 8),
    "scatter-linear": (324,),
}


def built(name: str, seed: int) -> Any:
    return build_model(name, seed, shape=SHAPES[name], num_classes=10)


@pytest.mark.parametrize(("name", "parameters"), [("mnist", 26_010), ("cifar10", 550_570), ("digits", 8_714)])
def test_parameter_counts_are_the_papers(name: str, parameters: int) -> None:
    assert sum(parameter.numel() for parameter in build_model(name, seed=0).parameters()) == parameters


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_ten_scores_an_image(name: str) -> None:
    assert built(name, seed=0)(torch.zeros(3, *SHAPES[name])).shape == (3, 10)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_weights_depend_on_the_seed_and_on_nothing_drawn_before(name: str) -> None:
    first = built(name, seed=5).state_dict()
    torch.rand(17)
    again, other = built(name, seed=5).state_dict(), built(name, seed=6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build_model("digits", seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_model_is_refused_with_the_choices() -> None:
    with pytest.raises(InputError, match=r"'resnet' is not installed here; jsam has mnist, cifar10, digits, linear"):
        build_model("resnet", seed=0)


@pytest.mark.parametrize("name", SIZED)
def test_a_linear_model_without_data_is_refused_as_campaigns_would_have_it(name: str) -> None:
    for ask in (lambda: check_model(name), lambda: build_model(name, seed=0)):
        with pytest.raises(InputError, match="takes its size from the data"):
            ask()
