"""Values with their origin: what is kept, and what is refused."""

import pytest

from meshwright.catalog.files import number_in, plain_values, read_tree

SOURCES = "sources:\n  S: {title: a data sheet}\n  T: {title: another}\n"


def read(text):
    return plain_values(read_tree(SOURCES + text, "f"))


def test_default_source_reaches_everything_below_it():
    plain = read("source: S\nrate: 3 TB/s\ninner: {count: 2, source: T}\nname: x\n")
    assert plain.value["rate"] == "3 TB/s"
    assert plain.value["inner"] == {"count": 2}
    assert {path: entry.source for path, entry in plain.provenance.items()} == {
        "rate": "S",
        "inner.count": "T",
    }


def test_an_assumed_value_keeps_its_interval_in_si_units():
    plain = read("latency: {value: 2 us, assumed: true, range: [1 us, 4000 ns], why: no figure}\n")
    origin = plain.provenance["latency"]
    assert (origin.kind, origin.source, origin.note) == ("assumed", None, "no figure")
    assert origin.low == pytest.approx(1e-6)
    assert origin.high == pytest.approx(4e-6)
    assert not plain.faults


def test_a_cited_value_may_have_an_interval():
    plain = read("sigma: {value: 0.189, source: S, range: [0, 0.4]}\n")
    assert (plain.provenance["sigma"].kind, plain.provenance["sigma"].high) == ("cited", 0.4)


def test_a_value_with_an_interval_states_its_own_origin():
    assert [fault.path for fault in read("source: S\nx: {value: 2, range: [1, 3]}\n").faults] == [
        "x"
    ]
    plain = read("source: S\nx: {value: 2, derived: true, why: half of four}\n")
    assert (plain.provenance["x"].kind, plain.provenance["x"].source) == ("derived", "S")
    assert not plain.faults


@pytest.mark.parametrize(
    ("entry", "path", "part"),
    [
        ("{value: 1 TB/s, source: U}", "x.source", "no entry 'U'"),
        ("{value: 1 TB/s}", "x", "no origin"),
        ("{value: 1 TB/s, assumed: true}", "x", "without a range"),
        ("{value: 1 TB/s, assumed: yes, range: [1 TB/s, 2 TB/s]}", "x.assumed", "can only be true"),
        ("{value: 1 TB/s, assumed: true, range: [2 TB/s, 3 TB/s]}", "x.range", "outside"),
        ("{value: 1 TB/s, assumed: true, range: [1 TB, 3 TB]}", "x.range", "another kind"),
        ("{value: 1 TB/s, assumed: true, range: [1, 3]}", "x.range", "another kind"),
        ("{value: 1 TB/s, assumed: true, range: 1 TB/s}", "x.range", "expected [LOW, HIGH]"),
        ("{value: 1 TB/s, assumed: true, range: [1 TB/s]}", "x.range", "expected [LOW, HIGH]"),
        ("{value: 1 TB/s, derived: true, source: S}", "x", "without saying how"),
        ("{value: 1 TB/s, source: S, sauce: 3}", "x.sauce", "unknown field"),
        ("{value: [1], source: S}", "x.value", "expected one number"),
        ("{value: 1 TB/s, source: S, why: 3}", "x.why", "expected text"),
        ("{value: 1e999 B, assumed: true, range: [1 B, 1e999 B]}", "x.range", "expected"),
    ],
)
def test_refusals(entry, path, part):
    faults = read(f"x: {entry}\n").faults
    assert [fault.path for fault in faults] == [path]
    assert part in faults[0].message
    assert "(line 4)" in faults[0].message


def test_numbers_in_text():
    assert number_in("2 us") == (2e-6, "s")
    assert number_in("3 TB") == (3e12, "bytes")
    assert number_in(7) == (7.0, "number")
    assert number_in(True) is None
    assert number_in("hopper") is None
