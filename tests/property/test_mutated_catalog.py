"""Mutated chip, system, optimizer and calibration files: an error that names the field, or a legal
file that lost an optional field; never another exception, never a silent default."""

import copy
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.files import data_names, load_file, load_text, number_in
from meshwright.catalog.systems import load_chip, load_system_file
from meshwright.catalog.workloads import PresetFile
from meshwright.spec.system import ChipSpec

LOADERS = {
    "chips": load_chip,
    "systems": lambda path: load_system_file(Path(path)),
    "workloads": lambda path: load_file(PresetFile, Path(path)),
    "calibration": lambda path: load_calibration("hopper", path),
}
FILES = [
    (folder, yaml.safe_load(path.read_text(encoding="utf-8")))
    for folder, names in {
        "chips": ("H100", "TEMP-die", "TPU-v5p"),
        "systems": ("dgx-h100", "wafer", "tpu-v4"),
        "calibration": ("uncalibrated",),
    }.items()
    for name, path in data_names(folder).items()
    if name in names
]
ABOUT_A_VALUE = ("value", "source", "assumed", "derived", "range", "why")
GARBAGE = st.sampled_from(
    [[], {}, [[[]]], {"a": {"b": [{"c": 1}]}}, "garbage", -7, -0.5, False, "3 parsecs", "TB/s", ""]
)


def places(tree, at=()):
    """Yield the location and value of each node, the list of sources and free notes left out."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if at or key not in ("sources", "notes"):
            yield (*at, key), value
            if isinstance(value, dict | list):
                yield from places(value, (*at, key))


def parent_of(tree, at):
    """Return the container of a location."""
    for step in at[:-1]:
        tree = tree[step]
    return tree


def field_of(at):
    """Return the field that a location belongs to."""
    return next(
        (step for step in reversed(at) if isinstance(step, str) and step not in ABOUT_A_VALUE),
        "source",
    )


def outcome(folder, tree):
    """Return the error of a file, or None where it loads."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        yaml.safe_dump(tree, file)
    try:
        LOADERS[folder](file.name)
    except SpecError as error:
        return error
    finally:
        Path(file.name).unlink()
    return None


def named(error, *fields):
    """Tell whether an error names one of the fields."""
    assert isinstance(error, SpecError), f"no error for {fields}"
    assert error.faults
    return any(str(name) in str(error) for name in fields)


mutated = settings(suppress_health_check=[HealthCheck.too_slow])


@st.composite
def file_and_place(draw, wanted=lambda at, value: True):
    """Draw a file and a location in a copy of it."""
    folder, tree = draw(st.sampled_from(FILES))
    tree = copy.deepcopy(tree)
    at = draw(st.sampled_from([at for at, value in places(tree) if wanted(at, value)]))
    return folder, tree, at


def is_number(at, value):
    return number_in(value) is not None and at[-1] != "why"


def is_quantity(at, value):
    return is_number(at, value) and isinstance(value, str)


@pytest.mark.parametrize("folder", sorted({folder for folder, _ in FILES}))
def test_the_files_load_before_they_are_mutated(folder):
    for entry, tree in FILES:
        assert entry != folder or outcome(folder, tree) is None


@mutated
@given(file_and_place(lambda at, value: isinstance(at[-1], str) and at[0] != "families"))
def test_a_renamed_field(drawn):
    folder, tree, at = drawn
    parent = parent_of(tree, at)
    parent[f"{at[-1]}_x"] = parent.pop(at[-1])
    assert named(outcome(folder, tree), f"{at[-1]}_x", field_of(at[:-1]))


@mutated
@given(file_and_place(lambda at, value: isinstance(value, dict)), st.sampled_from([1, "x", {}, []]))
def test_an_unknown_field(drawn, value):
    folder, tree, at = drawn
    parent_of(tree, at)[at[-1]]["flux_capacity"] = value
    if at == ("families",) and value == {}:
        return  # an empty family of that name is legal
    assert named(outcome(folder, tree), "flux_capacity")


@mutated
@given(file_and_place(lambda at, value: isinstance(at[-1], str)))
def test_a_deleted_field(drawn):
    folder, tree, at = drawn
    parent = parent_of(tree, at)
    del parent[at[-1]]
    error = outcome(folder, tree)
    if error is not None:
        assert named(error, at[-1], field_of(at))
    else:
        assert at[-1] in OPTIONAL or at[0] in ("families", "matmul_rate", "vector_rate")


OPTIONAL = {
    "also_called",
    # statements about a value that is cited anyway
    "source", "derived", "why", "range",
    # fields whose absence has a documented meaning, and that no price is hidden behind
    "standard_system", "best_matmul_rate", "vector_rate", "fp8", "fp16", "bf16", "fp32", "int8",
    "clock", "array_rows", "array_columns", "noc_rate",
    "num_cores", "tile_rows", "tile_columns", "peak_power", "idle_power", "price", "rent", "area",
    "energy", "latency", "bandwidth", "host", "memory_bandwidth", "links_per_device",
    "message_half",
    "max_link_length", "rail_optimized", "oversubscription", "in_network_reduction",
    "data_parallel_only", "overhead_power_fraction", "kind", "grid", "wraps",
    "other_side_multiple", "longest_named_side", "families", "pitch", "through_io_dies",
}  # fmt: skip


@mutated
@given(file_and_place(is_number), GARBAGE)
def test_a_number_of_another_type(drawn, garbage):
    folder, tree, at = drawn
    parent_of(tree, at)[at[-1]] = garbage
    inside_a_range = "range" in at and isinstance(garbage, int | float) and garbage < 0
    if inside_a_range and at[-1] == 0:
        return  # a lower bound below zero is an interval all the same
    assert named(outcome(folder, tree), field_of(at))


@mutated
@given(
    file_and_place(is_quantity), st.sampled_from([" W", " mm2", " TB", " J/b", "", " Hz", " kg"])
)
def test_a_quantity_of_another_unit(drawn, unit):
    folder, tree, at = drawn
    parent = parent_of(tree, at)
    number, old = parent[at[-1]].split(" ")
    swapped = f"{number}{unit}" if unit else float(number)
    if number_in(swapped) is not None and number_in(f"1 {old}")[1] == number_in(swapped)[1]:
        return  # the same dimension again
    parent[at[-1]] = swapped
    assert named(outcome(folder, tree), field_of(at))


@mutated
@given(file_and_place(lambda at, value: is_number(at, value) and "range" not in at))
def test_a_negative_number(drawn):
    folder, tree, at = drawn
    parent = parent_of(tree, at)
    value = parent[at[-1]]
    if number_in(value)[0] == 0:
        return
    parent[at[-1]] = f"-{value}" if isinstance(value, str) else -value
    assert named(outcome(folder, tree), field_of(at))


@mutated
@given(
    file_and_place(lambda at, value: isinstance(value, bool | dict) or field_of(at) == "kind"),
    st.sampled_from(["yes", 1, -2.5, "8 apples", ["a"], [[1]]]),
)
def test_structure_replaced_by_something_else(drawn, garbage):
    folder, tree, at = drawn
    was = parent_of(tree, at)[at[-1]]
    assume(garbage != 1 or isinstance(was, bool))  # a plain number may replace a sourced one
    parent_of(tree, at)[at[-1]] = garbage
    assert named(outcome(folder, tree), field_of(at))


@given(st.text(max_size=60) | st.text("abc:[]{}-#&*!|>'\"\n 0\t%@`", max_size=60))
def test_any_text_is_a_chip_or_a_spec_error(text):
    with pytest.raises(SpecError):
        load_text(ChipSpec, text, origin="x")
