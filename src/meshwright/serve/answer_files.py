"""Files of answers of serving, told apart by a field that each kind alone has."""

from __future__ import annotations

import json
from pathlib import Path

from meshwright.base.files import text_of
from meshwright.catalog.answer_file import AnswerFile
from meshwright.serve.answer import (
    DISAGGREGATED_FILE,
    SERVING_FILE,
    DisaggregatedPlan,
    ServingPlan,
)
from meshwright.serve.traffic.answer import TRAFFIC_FILE, TrafficPlan

ServingAnswer = ServingPlan | DisaggregatedPlan | TrafficPlan
_KINDS: dict[str, AnswerFile[ServingPlan] | AnswerFile[DisaggregatedPlan] | AnswerFile[TrafficPlan]]
_KINDS = {
    "objective": SERVING_FILE, "prefill_coverage": DISAGGREGATED_FILE, "traffic": TRAFFIC_FILE,
}  # fmt: skip


def is_of_serving(content: object) -> bool:
    """Return whether the content of a file is an answer of serving."""
    return isinstance(content, dict) and not _KINDS.keys().isdisjoint(content)


def load_serving(path: str | Path) -> ServingAnswer:
    """Return the answer in a file: a plan of workers, of both kinds of them, or of traffic."""
    try:
        content = json.loads(text_of(Path(path)))
    except (OSError, ValueError):
        content = None
    fields = content if isinstance(content, dict) else {}
    return next((_KINDS[name] for name in _KINDS if name in fields), SERVING_FILE).load(path)
