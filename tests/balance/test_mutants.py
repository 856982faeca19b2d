from __future__ import annotations

import pytest

from hvdgrab.balance import pair_balance
from tests.balance import mutants


def caught_by(balance) -> set[str]:
    caught = set()
    for check in mutants.CHECKS:
        try:
            check(balance)
        except AssertionError:
            caught.add(check.__name__)
    return caught


@pytest.mark.parametrize("check", mutants.CHECKS)
@pytest.mark.parametrize("balance", [pair_balance, mutants.correct])
def test_the_right_rule_passes_every_check(check, balance):
    check(balance)


@pytest.mark.parametrize("mutant", mutants.MUTANTS)
def test_every_mutant_is_caught_by_the_reference(mutant):
    assert "check_reference" in caught_by(mutant)


@pytest.mark.parametrize("mutant", mutants.MUTANTS)
def test_every_mutant_is_caught_without_the_reference(mutant):
    assert caught_by(mutant) - {"check_reference"}


def test_the_wrong_sign_rules_are_seen_in_the_bound_itself():
    for mutant in (mutants.reversed_rule, mutants.frozen_accumulator, mutants.buffer_subtracted_from_itself):
        assert "check_bound_falls" in caught_by(mutant), mutant
