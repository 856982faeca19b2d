"""The three models: shapes, sizes, and that each can learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hvdgrab.examples import digits, lstm_wikitext2, m4_mlp
from hvdgrab.examples.common import World, limited, mean_loss, step_is_due


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_lenet_reads_8_by_8_images() -> None:
    assert digits.LeNet()(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert _parameters(digits.LeNet()) == 13_706


def test_the_mlp_reads_20_weeks_and_writes_6() -> None:
    assert m4_mlp.MLP()(torch.zeros(3, 20)).shape == (3, 6)
    assert _parameters(m4_mlp.MLP()) == 20 * 64 + 64 + 2 * (64 * 64 + 64) + 64 * 6 + 6


@pytest.mark.parametrize(("tied", "parameters"), [(True, 483_615), (False, 936_191)])
def test_the_language_model_has_the_known_number_of_parameters(tied: bool, parameters: int) -> None:
    model = lstm_wikitext2.LanguageModel(14_143, tied=tied)
    assert _parameters(model) == parameters
    assert (model.decoder.weight is model.embedding.weight) is tied


def test_the_language_model_starts_every_sequence_without_memory() -> None:
    torch.manual_seed(0)
    model = lstm_wikitext2.LanguageModel(50)
    words = torch.randint(50, (2, 35))
    both = model(words)
    assert both.shape == (2, 35, 50)
    torch.testing.assert_close(both[1:], model(words[1:]))
    changed = words.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 50
    torch.testing.assert_close(model(changed)[:, :-1], both[:, :-1])  # no word sees a later one


def test_an_untrained_language_model_is_as_good_as_chance() -> None:
    torch.manual_seed(0)
    words = torch.randint(200, (4, 35))
    loss = lstm_wikitext2.loss_of(lstm_wikitext2.LanguageModel(200), words, words)
    assert float(loss.detach()) == pytest.approx(float(torch.log(torch.tensor(200.0))), rel=0.02)


def test_the_mean_loss_is_that_of_the_whole_dataset_at_once() -> None:
    train, _ = digits.load()
    torch.manual_seed(0)
    model, dataset = digits.LeNet(), limited(train, 300)
    assert len(dataset) == 300
    whole = float(digits.loss_of(model, *dataset.tensors).detach())
    assert mean_loss("test", digits.loss_of, model, dataset, World()) == pytest.approx(whole, rel=1e-5)
    parts = [mean_loss("test", digits.loss_of, model, dataset, World(rank=rank, size=3)) for rank in range(3)]
    assert sum(parts) / 3 == pytest.approx(whole, rel=1e-5)  # 300 examples: 100 on each of three ranks


def test_a_limit_beyond_the_dataset_is_no_limit() -> None:
    train, _ = digits.load()
    assert len(limited(train, None)) == len(limited(train, 10_000)) == 1438


def test_the_last_window_of_accumulation_may_be_short() -> None:
    assert [step_is_due(unit, 8, 3) for unit in range(8)] == [False, False, True, False, False, True, False, True]
    assert all(step_is_due(unit, 5, 1) for unit in range(5))
