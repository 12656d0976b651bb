"""A framework is one table: what its rows write is read back, and written again as it was."""

from pathlib import Path

import pytest
import yaml
from hand_made_plans import build
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.catalog.frameworks import framework_names, load_framework
from meshwright.frameworks import programs
from meshwright.frameworks.framework import exporters, readers
from meshwright.frameworks.reading.files import read_job
from meshwright.frameworks.reading.given import Given, Statement
from meshwright.frameworks.registry import export
from meshwright.frameworks.table import PLAIN, shows, text_of
from meshwright.sharding.strategy import ContextKind, Recompute, ScheduleKind
from meshwright.train.writing import TARGETS as TARGET_OF

FOLDER = Path(programs.__file__).parent
TABLES = {one.table_name: one.table for one in (*readers.values(), *exporters.values())}
FORMS = {"text": text_of, "tree": lambda value: value}
"""Values as command lines have them, and as files of settings do."""


def rows_of(table):
    return [*table.rows, *table.model_rows]


def values_of(row):
    """Return the values that a row can state, and that of a file that leaves it out."""
    if row.values:
        return st.sampled_from([*row.values.values(), row.default])
    if row.kind == "switch":
        return st.booleans()
    if row.kind == "real":
        return st.floats(0.125, 1e6).map(lambda number: float(f"{number:.6g}"))
    if row.kind == "text":
        return st.from_regex(r"[a-z][a-z0-9_.,-]{0,11}", fullmatch=True).filter(
            lambda text: text not in ("none", "null")
        )
    return st.integers(max(row.least, 1), min(row.most, 10**12))


@st.composite
def words_for(draw, table):
    """Draw a plan in words: values for some of the options that the rows name."""
    rows = [row for row in rows_of(table) if row.option and row.is_read]
    kept = draw(st.lists(st.sampled_from(rows), unique_by=lambda row: row.option, min_size=1))
    words = {row.option: draw(values_of(row)) for row in kept}
    own = {row.option: row for row in rows}
    for name in {row.when for row in rows_of(table) if row.when} - set(words):
        words[name] = draw(values_of(own[name]) if name in own else st.sampled_from([0, 2]))
    return words


def read_back(table, written, form):
    """Return the words that a file of these options states, its faults aside."""
    stated = Given(Statement(name, FORMS[form](value)) for name, value in written)
    return table.read(stated), stated.faults


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", sorted(name for name, table in TABLES.items() if table.rows))
@given(data=st.data())
def test_rows_read_what_they_write(name, form, data):
    table = TABLES[name]
    words = data.draw(words_for(table))
    written = list(table.write(words))
    found, faults = read_back(table, written, form)
    stated = dict(written)
    for row in rows_of(table):
        if not row.option or not row.is_read:
            continue
        expected = words.get(row.option) if row.name in stated else row.default
        assert found[row.option] == expected, row
    refused = {name for one in table.refused for name in one.names}
    assert not [fault for fault in faults if fault.path not in refused]
    assert list(table.write(words | {k: v for k, v in found.items() if k in words})) == written


@pytest.mark.parametrize("name", sorted(TABLES))
def test_no_option_stands_twice_in_a_table(name):
    table = TABLES[name]
    options = [row.option for row in rows_of(table) if row.option]
    read = [row for row in rows_of(table) if row.is_read]
    names = [other for row in read for other in (row.name, *row.also)]
    assert len(set(options)) == len(options)
    assert len(set(names)) == len(names)
    assert not set(names) & {pattern for pattern in table.ignored if "*" not in pattern}
    assert not set(names) & set(table.renamed), "renamed before it is read"
    assert {row.when for row in rows_of(table)} <= {"", *options, *CONDITIONS}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_word_of_a_table_is_misspelled(path):
    tree = yaml.safe_load(path.read_text("utf-8"))
    assert set(tree) <= {
        "title", "written", "extends", "starts", "holds", "rows", "model_rows", "renamed",
        "refused", "noted", "taken", "maps", "recipes", "ignored",
    }  # fmt: skip
    for row in (*tree.get("rows", {}).values(), *tree.get("model_rows", {}).values()):
        words = {"is", "kind", "values", "default", "also", "when", "always", "read", "least",
                 "most"}  # fmt: skip
        assert isinstance(row, str) or set(row) <= words, row
        assert isinstance(row, str) or row.get("kind", "real") in ("real", "switch", "text"), row
    for one in tree.get("refused", ()):
        assert {"names", "why"} <= set(one) <= {"names", "why", "fix", "unless"}, one


CONDITIONS = {"has_experts", "num_experts", "cp", "pp"}
"""Words of plans on which rows depend and that no row of theirs states."""


def test_a_switch_that_is_on_is_not_taken_for_the_number_one():
    row = next(one for one in TABLES["megatron"].rows if one.when == "has_fsdp")
    assert 1 in PLAIN
    assert row.written({"has_fsdp": True, "zero_stage": "3"}) == "optim_grads_params"
    assert row.written({"has_fsdp": False, "zero_stage": "3"}) is None


@pytest.mark.parametrize(
    ("sign", "is_shown"),
    [
        ("a", True), ("b", False), ("a c.*", True), ("a b", False), ("b|a", True), ("a !b", True),
        ("a !c.d", False), ("a=1", True), ("a=2", False), ("c.d=x*", True),
    ],
)  # fmt: skip
def test_a_sign_is_shown_where_all_of_its_words_apply(sign, is_shown):
    assert shows([sign], {"a": 1, "c.d": "xyz"}) is is_shown
    assert shows(["nothing", sign], {"a": 1, "c.d": "xyz"}) is is_shown


def test_what_starts_on_tpus_is_written():
    """MaxText alone: a plan that a framework starts is one that we can write for it."""
    on_tpus = [n for n in framework_names() if "Google" in load_framework(n).launches.vendors]
    assert on_tpus == ["maxtext"]
    assert TARGET_OF["maxtext"] in exporters


APART = ("torchtune", "torchtitan-autoparallel", "shardings")
"""Targets with a narrower set of plans (adapters, in tests/cases; Llama in one micro-batch), and
one that no program starts."""
TARGETS = sorted(name for name, one in exporters.items() if one.is_text and name not in APART)
"""Targets for plans that train all weights."""


@st.composite
def plans_for(draw, target):
    """Draw a plan of the axes and options that the framework of a target has."""
    launches = load_framework(exporters[target].catalog or "accelerate").launches
    pp = draw(st.sampled_from([1, 2, 4] if "pp" in launches.axes else [1]))
    degrees = {
        "pp": pp, "tp": draw(st.sampled_from([1, 2, 4])), "dp_shard": draw(st.sampled_from([2, 4])),
        "cp": draw(st.sampled_from([1, 1, 2] if "cp" in launches.axes else [1])),
        "micro_batch_size": draw(st.sampled_from([1, 2])),
    }  # fmt: skip
    if pp > 1 and "interleaved" in launches.schedules:
        degrees["num_virtual_stages"] = draw(st.sampled_from([1, 2]))
    kinds = sorted({*launches.recompute} - {"selective"})
    choices = {
        "zero_stage": draw(st.sampled_from(launches.zero_stages)),
        "recompute": Recompute(draw(st.sampled_from(kinds))),
        "reshard_after_forward": draw(st.sampled_from(launches.drops_gathered_weights)),
        "overlap_data_parallel": draw(st.sampled_from(launches.overlaps_data_parallel)),
        "overlap_tensor_parallel": min(launches.overlaps_tensor_parallel),
    }
    if pp > 1:
        plain = next(kind for kind in launches.schedules if kind != "interleaved")
        interleaves = degrees.get("num_virtual_stages", 1) > 1
        choices["schedule"] = ScheduleKind("interleaved" if interleaves else plain)
    if degrees["cp"] > 1:
        choices["context_kind"] = ContextKind(launches.context_kinds[0])
    if degrees["tp"] > 1:
        choices["sequence_parallel"] = draw(st.sampled_from(launches.sequence_parallel))
    optimizer = "megatron-adam" if target.startswith("megatron") else "fsdp-mixed"
    return build(
        degrees, choices, batch=64, length=4096, optimizer=optimizer, system="512xH100"
    )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_plan_that_is_written_is_read_back(tmp_path_factory, target, data):
    plan = data.draw(plans_for(target))
    assume(not exporters[target].refusals(plan))
    files = export(plan, target, tmp_path_factory.mktemp("plan"))
    devices = plan.best.estimate.num_devices_used
    options = read_job(files, num_devices=lambda: devices, stated=("model",)).options
    strategy, chosen = plan.best.strategy, plan.best.plan_options
    for axis in ("tp", "pp", "cp", "micro_batch_size", "num_virtual_stages"):
        assert int(options.get(axis) or 1) == getattr(strategy, axis), axis
    assert options["recompute"] == chosen.recompute
    assert (options["global_batch"], options["seq"]) == (64, 4096)
    if strategy.pp > 1 and "schedule" in options:
        assert options["schedule"] == chosen.schedule
    if strategy.tp > 1 and "sequence_parallel" in options:
        assert options["sequence_parallel"] == ("on" if chosen.sequence_parallel else "off")
    if chosen.zero_stage == 2 or not chosen.reshard_after_forward:  # which are the same in FSDP2
        assert (options["zero_stage"] in ("2", "3")) == (chosen.zero_stage >= 2)
    else:
        assert options["zero_stage"] == f"{chosen.zero_stage}"
