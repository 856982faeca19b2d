from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

import hvdgrab.compression
from hvdgrab.compression import Compressor, build_compressor, compressor_kinds, registry
from hvdgrab.compression.dense import Dense
from hvdgrab.compression.encoders import ENCODERS
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


SETTINGS = {"width": 100, "dtype": "fp32", "ratio": 0.5, "k": 3, "block": 7}
"""A value for every option that the configuration knows."""
SEEDED = {"seed"}
"""Options that are no settings of the section: the run has one seed."""


@pytest.mark.parametrize("kind", compressor_kinds())
def test_the_configuration_and_the_compressors_have_the_same_options(kind):
    assert set(SETTINGS) | {"kind"} == set(CompressionConfig.model_fields)
    accepted = {name for name, value in SETTINGS.items() if _is_valid(kind, {name: value})}
    assert accepted == set(inspect.signature(registry._KINDS[kind]).parameters) - SEEDED
    for name in accepted:
        assert dict(build_compressor(kind, **{name: SETTINGS[name]}).info.options)[name] == SETTINGS[name]


@pytest.mark.parametrize("kind", compressor_kinds())
def test_the_configuration_and_the_compressors_have_the_same_dtypes(kind):
    dtypes = set(get_args(get_args(CompressionConfig.model_fields["dtype"].annotation)[0])) | set(ENCODERS)
    for dtype in dtypes:
        assert _is_valid(kind, {"dtype": dtype}) == _can_be_built(kind, {"dtype": dtype}), dtype


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("topk", {"ratio": 0}), ("topk", {"ratio": 1.5}), ("topk", {"k": 0}), ("topk", {"k": 1, "ratio": 0.5}),
        ("topk", {"ratio": float("nan")}), ("sketch", {"width": 0}), ("int8", {"block": 0}), ("topk", {"dtype": "int8"}),
    ],
)  # fmt: skip
def test_both_refuse_the_same_values(kind, options):
    assert not _is_valid(kind, options)
    with pytest.raises(ConfigError, match=kind if "dtype" in options else next(iter(options))):
        build_compressor(kind, **options)


def _is_valid(kind, options):
    try:
        CompressionConfig(kind=kind, **options)
    except ValidationError:
        return False
    return True


def _can_be_built(kind, options):
    try:
        build_compressor(kind, **options)
    except ConfigError:
        return False
    return True


def test_unknown_kinds_and_options_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"unknown compressor 'zip'; valid are .*none"):
        build_compressor("zip")
    with pytest.raises(ConfigError, match=r"'none' has no option ratio, width; valid are none at all"):
        build_compressor("none", width=3, ratio=0.1)


def test_a_name_is_taken_once(table):
    with pytest.raises(ConfigError, match="'none' is registered twice"):
        registry.register("none")(Dense)


def test_an_incomplete_class_is_refused_where_it_is_made(table):
    with pytest.raises(ConfigError, match="'half' lacks encode, expand, expand_many, tolerance, projection, info"):

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
                room = name.split(".")[1] if name.startswith("hvdgrab.") else "compression"
                assert room in ("compression", "errors", "gpu"), source
    for name in hvdgrab.compression.__all__:
        assert getattr(hvdgrab.compression, name).__doc__
