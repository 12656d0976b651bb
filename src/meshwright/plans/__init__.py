"""The answer as data, and its files."""

from meshwright.plans.diagnosis import Diagnosis, Improvement, Loss, diagnosis_data
from meshwright.plans.files import (
    candidate_data,
    candidate_faults,
    from_json,
    load,
    parsed,
    save,
    to_data,
    to_json,
    validated,
    why_not_data,
)
from meshwright.plans.plan import (
    FORMAT,
    Candidate,
    Coverage,
    Estimate,
    HotLink,
    Placement,
    Plan,
    Replan,
    Robustness,
    Segment,
    Trials,
    WhyNot,
)

__all__ = [
    "FORMAT", "Candidate", "Coverage", "Diagnosis", "Estimate", "HotLink", "Improvement", "Loss",
    "Placement", "Plan", "Replan", "Robustness", "Segment", "Trials", "WhyNot", "candidate_data",
    "candidate_faults", "diagnosis_data", "from_json", "load", "parsed", "save", "to_data",
    "to_json", "validated", "why_not_data",
]  # fmt: skip
