"""Differences between sources: how widely factors of the resources and errors of jobs scatter.

The jobs of a source share ln(factor) of each resource, normal with covariance c^2 + diag(s_r^2);
each has an error of its own, wider for some traits. Errors are those of constants fitted without
the source, as the next source meets them. The widths are the most likely ones, held near expected
ones (empirical Bayes): where sources say nothing about a resource, it keeps the expected width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import FloatArray
from meshwright.calibration.fit.training import Fit, FitRows, draws_of
from meshwright.calibration.prediction import measurement
from meshwright.spec.calibration import Between, Tail
from meshwright.train.measured.factors import NAMES, Measurement
from meshwright.train.measured.learning import JOB_TRAITS, Jobs, jobs_of

EXPECTED = (0.1, *(0.1 for _ in NAMES), 0.07, 0.5, *(1.0 for _ in JOB_TRAITS))
"""Expected widths: of all resources together, of each alone, of a job, of the logarithm of that;
then factors of traits."""
HELD = 0.7
"""Standard deviation of the logarithm of each about it."""
MOST_HELD = 3.0
"""Standard deviations that a width lies from it at most: beyond, covariances lose their digits."""
MOST_JOBS = 20
"""Jobs of a source that are used, drawn by chance: large tables do not drown small ones."""
SEED = 0


@dataclass(frozen=True)
class Source:
    """Some jobs of one source on one family of chips."""

    group: str
    family: str
    stack: str
    rows: NDArray[np.int_]
    """Place of each job among the rows of the fit, (jobs,)."""
    jobs: Jobs

    def with_errors(self, errors: FloatArray) -> Source:
        """Return the jobs with other errors, without those that are NaN.

        Parameters
        ----------
        errors
            ln(measured / predicted) of all rows of the fit, (rows,).
        """
        known = ~np.isnan(errors[self.rows])
        jobs = replace(self.jobs, errors=errors[self.rows]).some(known)
        return replace(self, rows=self.rows[known], jobs=jobs)


def between_of_fit(found: Fit) -> Between | None:
    """Return the differences between sources that were left out of a fit, in three digits."""
    errors = found.left_out_errors
    between = fit_between([one.with_errors(errors) for one in sources_of(found)])
    return between and Between.model_validate(rounded(between.model_dump()))


def rounded(value: Any) -> Any:
    """Return numbers in nested mappings, in three digits."""
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    return float(f"{value:.3g}")


def sources_of(found: Fit) -> list[Source]:
    """Return some jobs of each source, in the slopes at the fitted constants."""
    return drawn_sources(found.rows, partial(fitted_job, found))


def drawn_sources(rows: FitRows, job: Callable[[int], Measurement]) -> list[Source]:
    """Return some jobs of each source, drawn by chance.

    Parameters
    ----------
    job
        Makes the measured job at a place.
    """
    generator, places = np.random.default_rng(SEED), defaultdict(list)
    for place, key in enumerate(zip(rows.groups, rows.families, rows.stacks, strict=True)):
        places[key].append(place)
    sources = []
    for key, own in places.items():
        drawn = np.sort(generator.permutation(own)[:MOST_JOBS])
        sources.append(Source(*key, drawn, jobs_of([job(place) for place in drawn.tolist()])))
    return sources


def fitted_job(found: Fit, place: int) -> Measurement:
    """Return the measured job of a row under the fitted constants."""
    rows, job = found.rows, measurement(found.rows.predictions[place])
    constants, draws = job.problem.nominal_calibration, dict[str, Any]()
    for key, value in zip(found.keys, found.values.tolist(), strict=True):
        if key.holds(rows.families[place], rows.frameworks[place]):
            draws |= draws_of(key, np.exp(value), constants)
    return replace(job, problem=replace(job.problem, calibration=replace(constants, **draws)))


def fit_between(sources: Sequence[Source]) -> Between | None:
    """Return the most likely widths behind the errors of sources; None: there are fewer than two.

    Parameters
    ----------
    sources
        With errors under constants fitted without each of them.
    """
    from scipy.optimize import minimize

    used = [source for source in sources if len(source.rows)]
    if len({source.stack for source in used}) < 2:
        return None
    start = np.log(EXPECTED)

    def unlikely(logs: FloatArray) -> float:
        found = _between(logs)
        away = (logs - start) / HELD
        likely = sum(replace(one.jobs, between=found).log_density for one in used)
        return float(0.5 * away @ away - likely)

    within = [(each - MOST_HELD * HELD, each + MOST_HELD * HELD) for each in start.tolist()]
    return _between(minimize(unlikely, start, method="L-BFGS-B", bounds=within).x)


def _between(logs: FloatArray) -> Between:
    """Return widths from their logarithms."""
    common, *resources = np.exp(logs[: len(NAMES) + 1]).tolist()
    job, scatter, *factors = np.exp(logs[len(NAMES) + 1 :]).tolist()
    return Between(
        common=common,
        resources=dict(zip(NAMES, resources, strict=True)),
        job=Tail(distance=job, factors=dict(zip(JOB_TRAITS, factors, strict=True))),
        job_scatter=scatter,
    )
