"""What belongs to another question is said in one line."""

import pytest

import meshwright as mw
from meshwright.base.errors import InfeasibleError, SpecError

pytestmark = pytest.mark.usefixtures("kept_answers")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    trained, served = str(folder / "training.json"), str(folder / "serving.json")
    mw.estimate("gpt2-355m", on="8xH100", seq=1024, global_batch=64, out=trained)
    mw.serve("llama3-8b", on="8xH100", batch=8, context=1024, tp=8, out=served)
    return {"training": trained, "decode": served}


@pytest.mark.parametrize(("kind", "target"), [("training", "vllm"), ("decode", "megatron")])
def test_a_plan_of_other_work_is_named(files, kind, target):
    with pytest.raises(SpecError) as caught:
        mw.export(files[kind], target, print=True)
    (fault,) = caught.value.faults
    assert fault.message == f"this is a plan of {kind}"


@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_a_framework_without_the_model_is_named_with_those_that_have_it(verb):
    asked = {"on": "8xH100", "seq": 1024, "global_batch": 64, "framework": "megatron"}
    with pytest.raises(SpecError, match=r"GemmaForCausalLM.*maxtext"):
        getattr(mw, verb)("gemma-2b", **asked)


def test_a_short_run_has_its_tokens_in_words():
    from meshwright.view.media import text_of

    found = mw.estimate("gpt2-355m", on="8xH100", seq=1024, global_batch=64, tokens=65_536_000)
    assert "for 65.54M tokens" in text_of(found.page())


@pytest.mark.parametrize("fixed", [{"pp": 1, "schedule": "interleaved"}, {"tp": 8, "pp": 4}])
def test_choices_that_leave_no_strategy_are_named(fixed):
    text = ", ".join(f"{name} {value}" for name, value in fixed.items())
    with pytest.raises(InfeasibleError, match=f"contradict each other: no strategy has {text}$"):
        mw.plan("gpt2-355m", on="16xH100", seq=1024, global_batch=64, **fixed)
