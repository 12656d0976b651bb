"""Every study has a title and a source, runs, gives lines, data, and files of its tables.

The evaluation of TEMP runs on a sample of its models here; ``meshwright study all`` runs all of it.
"""

import csv
import io
import json
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from temp_results import RESULTS, unjudged

from meshwright_papers.studies import crossover
from meshwright_papers.studies.dfmodel import trillion
from meshwright_papers.studies.study import (
    Verdict,
    document,
    studies,
    study_markdown,
    table_csv,
    table_svg,
)
from meshwright_papers.studies.temp import settings, setup, strategies, wafers

SAMPLE = ("GPT-3 6.7B", "GPT-3 175B")
TEMP = tuple(name for name in studies if name.startswith("temp-"))
LONG = (*TEMP, "crossover", "dfmodel", "gpt-145.6b", "textbook-3d")


DOCS = Path(__file__).parents[3] / "docs" / "results"
ALONE = (*SAMPLE, *(published.case.name for published in strategies.PUBLISHED))
"""Cases whose rows of a table do not depend on which other cases ran."""


def marked(name):
    return pytest.param(name, marks=pytest.mark.slow) if name in LONG else name


@contextmanager
def sampled(cases):
    """Leave only the cases of the sample in a registry."""
    known = dict(cases)
    cases.clear()
    cases.update({case: known[case] for case in SAMPLE})
    try:
        yield
    finally:
        cases.clear()
        cases.update(known)


@cache
def result_of(name):
    """Return what a study finds on the sample."""
    with pytest.MonkeyPatch.context() as patch, sampled(setup.CASES):
        patch.setattr(strategies, "PUBLISHED", strategies.PUBLISHED[:2])
        patch.setattr(wafers, "SETUPS", wafers.SETUPS[:1])
        patch.setattr(settings, "ASKED", settings.ASKED[:1])
        patch.setattr(crossover, "DEVICES", crossover.DEVICES[:2])
        patch.setattr(trillion, "TILES", trillion.TILES[2:4])
        return studies[name].run()


@pytest.fixture(scope="module", params=[marked(name) for name in sorted(studies)])
def study(request):
    name = request.param
    return name, studies[name], result_of(name)


def test_study_says_what_it_is(study):
    assert study[1].title
    assert study[1].source


def test_study_gives_lines_and_data(study):
    result = study[2]
    assert result.lines
    assert all("\n" not in line and len(line) <= 100 for line in result.lines)
    assert json.loads(json.dumps(result.data)) == result.data


def test_claims_that_differ_have_a_reason(study):
    for claim in study[2].claims:
        assert claim.why or claim.verdict is not Verdict.DIFFERS
        assert claim.published or claim.verdict is Verdict.NOT_PUBLISHED


def test_tables_become_files(study):
    for table in study[2].tables:
        rows = list(csv.reader(io.StringIO(table_csv(table))))
        assert tuple(rows[0]) == table.columns
        assert len(rows) == len(table.rows) + 1
        chart = table_svg(table)
        assert not chart or ElementTree.fromstring(chart).tag.endswith("svg")


def test_the_committed_document_says_what_the_study_finds_now(study):
    """Whole where all of a study runs here; of the sampled ones, the rows of the sampled cases."""
    name, kind, result = study
    if name not in LONG:
        text = (DOCS / "studies.md").read_text(encoding="utf-8")
        assert study_markdown(name, kind.title, kind.source, result, "studies/") in text
    for table in result.tables:
        committed = committed_rows(table)
        rows = list(csv.DictReader(io.StringIO(table_csv(table))))
        if name in LONG:
            rows = [row for row in rows if row.get("model", row.get("case", "")) in ALONE]
        assert [row for row in rows if row not in committed] == [], table.name


def committed_rows(table):
    text = (DOCS / "studies" / f"{table.name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.slow
def test_sampled_studies_are_compared_with_committed_rows():
    compared = {
        table.name
        for name in LONG
        for table in result_of(name).tables
        if any(row.get("model", row.get("case")) in ALONE for row in table.records)
    }
    assert compared >= {"fig13", "fig13_no_hbm", "fig14", "fig15", "fig16", "fig17_18"}


def test_documents_hold_every_claim(study):
    name, kind, result = study
    section = study_markdown(name, kind.title, kind.source, result)
    for text in (section, document([section], [(c.verdict, None) for c in result.claims])):
        assert all(claim.what in text for claim in result.claims)
        assert f"## {name}" in text


@pytest.mark.slow
def test_every_published_result_has_a_verdict():
    claims = [claim for name in TEMP for claim in result_of(name).claims]
    assert not unjudged([claim.what for claim in claims])


def test_a_result_without_a_verdict_is_noticed():
    starts = [start for result in RESULTS for start in result.claims]
    assert not unjudged(starts)
    assert len(unjudged(starts[1:])) == 1
