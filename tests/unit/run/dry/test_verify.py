"""Plans that are run dry before they are given."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from datetime import date

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.run.dry import verify
from meshwright.train.answer import Plan, Verified
from meshwright.train.plan_file import from_json, to_json
from meshwright.train.words import verified_in_words

from .test_dry_runs import planned

STARTED = Verified("tp1", "PyTorch 2.13.0", starts=True, fits=True, peak_bytes=2.0**30,
                   priced_bytes=2.0**31, num_collectives=3)  # fmt: skip


def ranked():
    """Return a plan with a second one behind it."""
    first, second = planned(dp=8, global_batch=8), planned(dp=8, global_batch=8, recompute="full")
    asked = {one.name: getattr(first, one.name) for one in fields(Plan)}
    return replace(Plan(**asked), runners_up=(second.best,))


def test_a_dry_run_says_start_memory_and_collectives():
    found = verify.verified(ranked())
    (told,) = found.verified
    assert found.best == ranked().best
    assert (told.starts, told.fits, told.num_collectives, told.num_unequal) == (True, True, 3, 0)
    assert told.peak_bytes == pytest.approx(told.priced_bytes, rel=0.2)
    assert verified_in_words(told).endswith("collectives equal")
    assert from_json(to_json(found)).verified == found.verified


def test_a_line_says_it():
    assert verified_in_words(STARTED) == (
        "started in a dry run of PyTorch 2.13.0: peak 1.0 GiB, priced 2.0 GiB; collectives equal"
    )
    unequal = verified_in_words(replace(STARTED, fits=False, num_unequal=1))
    assert unequal.startswith("does not fit in a dry run")
    assert unequal.endswith("collectives 1 of 3 kinds differ")


def test_the_next_plan_is_taken_where_the_first_does_not_start(monkeypatch):
    plan, run = ranked(), verify.dry_run

    def breaking(one, progress=None):
        if one.best == plan.best:
            raise RuntimeError("no such mesh\nmore")
        return run(one, progress)

    monkeypatch.setattr(verify, "dry_run", breaking)
    found = verify.verified(plan)
    assert found.best == plan.runners_up[0]
    assert [told.starts for told in found.verified] == [False, True]
    assert found.warnings[-1].endswith("does not start in a dry run: RuntimeError: no such mesh")
    tiles = {tile.label: tile for tile in found.page().tiles}
    assert tiles["verified"].answer.startswith("started in a dry run of PyTorch")


def test_the_first_plan_stays_where_none_fits(monkeypatch):
    plan = ranked()
    few = replace(plan.best.estimate, memory_capacity_bytes=1.0)
    none = replace(plan, best=replace(plan.best, estimate=few), runners_up=())
    found = verify.verified(none)
    assert found.best == none.best
    assert verified_in_words(found.verified[0]).startswith("does not fit in a dry run")


def test_a_plan_without_a_program_is_kept_with_the_reason():
    plan = mw.fit("llama3-8b", on="8xH100", framework="megatron", tp=2, dp=4, zero=1,
                  mbs=1, seq=1024, global_batch=4)  # fmt: skip
    (told,) = verify.verified(plan).verified
    assert told.starts is None
    assert verified_in_words(told).startswith("not run dry: ")


def test_verify_is_for_one_plan():
    with pytest.raises(SpecError, match="verify"):
        mw.plan("gpt2-medium", on="8xH100", seq=1024, global_batch=64, verify=True, within="30d",
                tokens="2T")  # fmt: skip


def test_torch_that_is_missing_is_named_and_plan_alone_needs_none():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import meshwright as mw\n"
        "asked = {'on': '8xH100', 'seq': 1024, 'global_batch': 64, 'tp': 1, 'pp': 1}\n"
        "assert mw.plan('gpt2-medium', **asked).best\n"
        "try: mw.plan('gpt2-medium', **asked, verify=True)\n"
        "except mw.MeshwrightError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'meshwright[run]'" in done.stdout


def test_exported_files_say_the_dry_run_where_it_was_asked_for():
    plan = mw.estimate("llama3.2-1b", on="8xH100", framework="fsdp", dp=8, zero=3, mbs=1,
                       seq=512, global_batch=8, recompute="none")  # fmt: skip
    plan = replace(plan, verified=(STARTED,))
    (plain,) = mw.export(plan, "torch", print=True).values()
    assert "dry run" not in plain
    (said,) = mw.export(plan, "torch", print=True, verify=True).values()
    line = next(line for line in said.splitlines() if "in a dry run of" in line)
    assert line.startswith("# started in a dry run of PyTorch 2.")
    assert line.endswith(f", {date.today()}")
    (other, *_) = mw.export(plan, "megatron", print=True, verify=True).values()
    assert "# not run dry: zero_stage: 3 is Megatron-FSDP" in other
