from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import get_args

import pytest

import hvdgrab.compression
from hvdgrab.compression import Compressor, build_compressor, compressor_kinds, registry
from hvdgrab.compression.dense import Dense
from hvdgrab.config import CompressionConfig
from hvdgrab.errors import ConfigError


@pytest.fixture
def table(monkeypatch):
    """A copy of the table, so that a test's entries end with it."""
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    return registry._KINDS


@pytest.mark.parametrize("kind", compressor_kinds())
def test_entries_are_compressors_that_know_their_name(kind):
    built = build_compressor(kind)
    assert isinstance(built, Compressor)
    assert built.info.kind == kind
    with pytest.raises(dataclasses.FrozenInstanceError):
        built.info.kind = "other"
    hash(built.info)


def test_the_configuration_offers_what_is_registered():
    assert set(get_args(CompressionConfig.model_fields["kind"].annotation)) == set(compressor_kinds())


def test_unknown_kinds_and_options_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"unknown compressor 'zip'; valid are .*none"):
        build_compressor("zip")
    with pytest.raises(ConfigError, match=r"'none' has no option ratio, width; valid are none at all"):
        build_compressor("none", width=3, ratio=0.1)


def test_a_name_is_taken_once(table):
    with pytest.raises(ConfigError, match="'none' is registered twice"):
        registry.register("none")(Dense)


def test_an_incomplete_class_is_refused_where_it_is_made(table):
    with pytest.raises(ConfigError, match="'half' lacks expand, info"):

        @registry.register("half")
        class Half:
            def width(self, d): ...
            def wire_bytes(self, d): ...
            def compress(self, difference, out=None): ...

    assert "half" not in table


def test_an_entry_under_a_wrong_name_is_refused(table):
    registry.register("other")(Dense)
    with pytest.raises(ConfigError, match="registered as 'other' calls itself 'none'"):
        build_compressor("other")


def test_the_room_knows_no_mpi_and_all_is_importable():
    sources = list(Path(hvdgrab.compression.__file__).parent.glob("*.py"))
    assert len(sources) >= 5
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None)]
            for name in filter(None, names):
                assert name.split(".")[0] not in ("mpi4py", "horovod"), source
                assert not name.startswith("hvdgrab.") or name.startswith(("hvdgrab.compression", "hvdgrab.errors")), source
    for name in hvdgrab.compression.__all__:
        assert getattr(hvdgrab.compression, name).__doc__
