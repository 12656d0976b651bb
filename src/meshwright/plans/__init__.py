"""The answer as data, and its files."""

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
    WhyNot,
)

__all__ = [
    "FORMAT", "Candidate", "Coverage", "Estimate", "HotLink", "Placement", "Plan", "Replan",
    "Robustness", "Segment", "WhyNot", "candidate_data", "candidate_faults", "from_json", "load",
    "parsed", "save", "to_data", "to_json", "validated", "why_not_data",
]  # fmt: skip
