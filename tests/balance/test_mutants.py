"""Every mutation is caught in every backend, and every backend passes every check without one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from hvdgrab.balance import PairRule, RecursiveBalance, pair_balance
from hvdgrab.config import BalanceConfig
from tests.balance import mutants
from tests.balance.data import random_gradients

BACKENDS = {
    "literal": mutants.literal,
    **{name: partial(pair_balance, backend=name) for name in ("reference", "numba", "torch")},
}
every_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
every_mutation = pytest.mark.parametrize("mutation", mutants.MUTATIONS)


SEEN_IN_THE_BOUND = (mutants.reversed_rule, mutants.frozen_accumulator, mutants.buffer_subtracted_from_itself)


def caught_by(balance) -> set[str]:
    caught = set()
    for check in mutants.CHECKS:
        try:
            check(balance)
        except AssertionError:
            caught.add(check.__name__)
    return caught


@every_backend
@pytest.mark.parametrize("check", mutants.CHECKS)
def test_the_right_rule_passes_every_check(check, backend):
    check(backend)


@every_backend
@every_mutation
def test_every_mutant_is_caught_by_the_reference_and_without_it(mutation, backend):
    caught = caught_by(mutation(backend))
    assert "check_reference" in caught
    assert caught - {"check_reference"}
    assert "check_bound_falls" in caught or mutation not in SEEN_IN_THE_BOUND


class KeepsTheFirst(PairRule):
    """Keeps the first gradient of a pair by reference."""

    def _decide(self, vector):
        if self.position % 2 == 0:
            self._has_first, self._first = True, vector[None]
            return 0
        self._first = self._first - vector
        return int(self._balancer.feed(self._first)[0][0])


class KeepsWhatWaits(RecursiveBalance):
    """Keeps waiting gradients by reference."""

    def _arrive(self, node, position, vector):
        decided = super()._arrive(node, position, vector)
        if decided is None and node < self._nodes:
            self._vectors[node] = vector
        return decided


@pytest.mark.parametrize(("right", "wrong"), [(PairRule, KeepsTheFirst), (RecursiveBalance, KeepsWhatWaits)])
def test_a_rule_that_keeps_a_gradient_by_reference_is_seen(right, wrong):
    """One buffer for all gradients, as in training: the order differs from that of separate ones, and only for the mutant."""

    def order(kind, shared: bool) -> list[int]:
        rule, buffer = kind(32, 3, config=BalanceConfig(backend="reference")), np.zeros(3, dtype=np.float32)
        for gradient in random_gradients(1, 32, 3)[0]:
            buffer[:] = gradient
            rule.add(buffer if shared else gradient)
        return rule.next_order().tolist()

    assert order(right, shared=True) == order(right, shared=False)
    assert order(wrong, shared=True) != order(right, shared=True)
