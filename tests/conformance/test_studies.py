"""Every study has a title and a source, runs, and gives lines and plain data."""

import json

import pytest

from meshwright.studies import studies


@pytest.fixture(scope="module", params=sorted(studies))
def study(request):
    return studies[request.param]


def test_study_says_what_it_is(study):
    assert study.title
    assert study.source


def test_study_gives_lines_and_data(study):
    result = study.run()
    assert result.lines
    assert all("\n" not in line and len(line) <= 100 for line in result.lines)
    assert json.loads(json.dumps(result.data)) == result.data
