from __future__ import annotations

import json

import pytest

from hvdgrab.config import COORDINATORS, ENVIRONMENT_VARIABLE, GraBConfig
from hvdgrab.errors import ConfigError

REFUSED = {
    "re-ordering every step": ({"reorder": "step"}, "reorder: .*orders are made once an epoch and are fixed while it runs"),
    "several times an epoch": ({"reorder": {"every": 0.5}}, "reorder.every: .*every unit exactly once"),
    "every unit": ({"reorder": {"every": "unit"}}, "reorder.every: .*The most often is every: 1"),
    "never": ({"reorder": {"first": 3, "last": 2}}, "last is 2, before first, which is 3"),
    "an unknown bound": ({"reorder": {"while_falling": True}, "bound": "off"}, "needs the herding bound, but bound is 'off'"),
    "sharded sketches": ({"coordinator": "sharded", "compression": "topk"}, "compression 'topk' would make them others"),
    "another backend": ({"coordinator": "sharded", "balance": {"backend": "numba"}}, "balance.backend 'numba' cannot do that"),
    "alone and together": ({"coordinator": "replicated", "order": "id-grab"}, "leave coordinator out"),
    "two names of two orders": ({"coordinator": "independent", "order": "rr"}, "another name of order 'id-grab'"),
    "an idle server": ({"coordinator": "server", "order": "rr"}, "nothing to do"),
    "a rank that does not decide": ({"coordinator": "replicated", "designated_rank": 1}, "has no designated rank"),
    "no ranks in a node": ({"communication": {"node_size": 0}}, "communication.node_size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_contradict_each_other_are_refused_with_the_reason(name):
    settings, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        GraBConfig.resolve(None, **settings)


def test_what_a_coordinator_implies():
    assert GraBConfig(coordinator="independent").order == "id-grab"
    assert GraBConfig(coordinator="sharded").compression.kind == "none"
    assert GraBConfig(coordinator="sharded", compression="none").compression.kind == "none"
    assert {GraBConfig(coordinator=name).compression.kind for name in COORDINATORS if name != "sharded"} == {"sketch"}


def test_a_number_alone_is_every_so_many_epochs():
    assert GraBConfig(reorder=2).reorder.every == 2


def test_settings_come_through_the_environment_as_they_were(monkeypatch):
    given = GraBConfig(coordinator="sharded", reorder={"every": 3, "last": 9}, debug=True, communication={"algorithm": "flat"})
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, json.dumps(given.model_dump(exclude_unset=True)))
    assert GraBConfig.from_environment() == given
