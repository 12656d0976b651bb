"""The best plan that starts and fits in a dry run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date

from meshwright.base.errors import UnsupportedError
from meshwright.run.dry.run import Progress, dry_run
from meshwright.train.answer import Plan, Verified
from meshwright.train.words import verified_in_words


def verified(plan: Plan, progress: Callable[[str, str], Progress | None] | None = None) -> Plan:
    """Return the best plan whose dry run starts and fits, in the order of the ranking.

    A plan that no program here can run dry is kept, with the reason. If no plan starts and fits,
    the best one is returned with the verdicts.
    """
    tried: list[Verified] = []
    for one in _ranked(plan):
        tried.append(verdict(one, progress))
        if tried[-1].is_kept:
            failed = tuple(f"{each.plan}: {verified_in_words(each)}" for each in tried[:-1])
            return replace(one, verified=tuple(tried), warnings=(*one.warnings, *failed))
    return replace(plan, verified=tuple(tried))


def _ranked(plan: Plan) -> Iterator[Plan]:
    """Yield a plan, then the fitting ones of its ranking, each with the rest of the ranking."""
    yield plan
    for at, candidate in enumerate(plan.runners_up):
        if candidate.estimate.fits:
            left = plan.runners_up[at + 1 :]
            yield replace(plan, best=candidate, runners_up=left, robustness=None, operators=None)


def verified_for(plan: Plan, target: str) -> Plan:
    """Return a plan with the dry run of the program that a target of ``export`` starts."""
    framework = {"torch": "fsdp", "torchtitan-autoparallel": "torchtitan"}.get(target, target)
    work = plan.workload
    if work.software.framework.partition("==")[0] != framework:
        software = work.software.model_copy(update={"framework": framework})
        work = work.model_copy(update={"software": software})
    return replace(plan, verified=(verdict(replace(plan, workload=work)),))


def verdict(plan: Plan, progress: Callable[[str, str], Progress | None] | None = None) -> Verified:
    """Return the verdict of a dry run on a plan.

    Its memory is the priced one, corrected by what executed tensors take more, or less, than priced
    ones of the same program: that one is not compiled. Of 70 GiB priced, where 68 GiB are executed
    and 66 GiB priced without a compiler: 72 GiB.
    """
    price, name = plan.best.estimate, plan.best.text
    try:
        ran = dry_run(plan, progress)
    except UnsupportedError as error:
        return Verified(name, reason="; ".join(map(str, error.faults)) or str(error))
    except Exception as error:
        told = str(error).strip().partition("\n")[0]
        return Verified(name, starts=False, reason=f"{type(error).__name__}: {told}")
    fullest = max(ran.stages, key=lambda stage: stage.peak_bytes)
    more = fullest.peak_bytes - max(stage.predicted_bytes for stage in ran.stages)
    return Verified(
        name, ran.program, f"{date.today()}", starts=True,
        fits=price.memory_bytes + more <= price.memory_capacity_bytes,
        peak_bytes=fullest.peak_bytes, priced_bytes=fullest.predicted_bytes,
        num_collectives=sum(len(stage.sent) for stage in ran.stages),
        num_unequal=sum(not one.is_equal for stage in ran.stages for one in stage.sent),
    )  # fmt: skip
