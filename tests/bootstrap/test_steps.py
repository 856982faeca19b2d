from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from launcher.bootstrap.steps import Stamps, Step, perform


class World:
    """Three fake steps; what they make is a set of names."""

    def __init__(self, stamps: Path) -> None:
        self.made: set[str] = set()
        self.calls: list[tuple[str, bool]] = []
        self.stamps = Stamps(stamps)
        self.keys = {"one": "1", "two": "2", "three": "3"}
        self.adopt = True
        self.break_at = ""

    def step(self, name: str) -> Step:
        def run(redo: bool) -> None:
            self.calls.append((name, redo))
            if name == self.break_at:
                raise KeyboardInterrupt
            self.made.add(name)

        return Step(name, f"doing {name}", self.keys[name], lambda: name in self.made, run, self.adopt)

    def perform(self) -> list[str]:
        return perform([partial(self.step, name) for name in self.keys], self.stamps, lambda text: None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "deep" / "stamps.json")


def test_a_second_run_does_nothing(world: World) -> None:
    assert world.perform() == ["one", "two", "three"]
    assert world.perform() == []
    assert len(world.calls) == 3


def test_only_what_changed_is_done_again(world: World) -> None:
    world.perform()
    world.keys["two"] = "changed"
    assert world.perform() == ["two"]


def test_a_result_that_vanished_is_made_again(world: World) -> None:
    world.perform()
    world.made.discard("three")
    assert world.perform() == ["three"]


def test_an_interrupted_step_is_done_again_and_told_so(world: World) -> None:
    world.break_at = "two"
    with pytest.raises(KeyboardInterrupt):
        world.perform()
    world.made.add("two")  # it looks finished, but may be half of something
    world.break_at = ""
    assert world.perform() == ["two", "three"]
    assert world.calls == [("one", False), ("two", False), ("two", True), ("three", False)]


def test_what_is_there_without_a_stamp_is_adopted(world: World) -> None:
    world.made = {"one", "two", "three"}
    assert world.perform() == []
    assert world.stamps.read() == world.keys


def test_unless_the_step_forbids_it(world: World) -> None:
    world.made, world.adopt = {"one", "two", "three"}, False
    assert world.perform() == ["one", "two", "three"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"one": '])
def test_stamps_that_cannot_be_read_count_as_none(world: World, text: str) -> None:
    world.perform()
    world.stamps.path.write_text(text)
    world.adopt = False
    assert world.perform() == ["one", "two", "three"]


def test_titles_count_the_steps(world: World) -> None:
    said: list[str] = []
    perform([lambda: world.step("one"), lambda: world.step("two")], world.stamps, said.append)
    assert [text for text in said if text.startswith("[")] == ["[1/2] doing one", "[2/2] doing two"]
