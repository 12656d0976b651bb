"""Workers with prices of round numbers, to follow a queue by hand; and priced ones."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from meshwright.serve.serve import serving_problem
from meshwright.serve.traffic.iteration import Worker
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.arrivals import ALONE, Arrivals
from meshwright.spec.calibration import NEUTRAL
from meshwright.spec.workload import PAGED, Decode, Server, SoftwareStack


@dataclass
class FlatWorker:
    """A worker with iterations of ``start_s`` plus ``token_s`` for each token, of either kind."""

    start_s: float = 1.0
    token_s: float = 0.0
    cache_tokens: int = 1 << 20
    server: Server = PAGED
    tokens: Any = field(default_factory=lambda: np.array([0.0, 8192.0]))
    sequences: Any = field(default_factory=lambda: np.array([0.0, 8192.0]))
    lengths: Any = field(default_factory=lambda: np.array([1.0, 65536.0]))
    problem: Any = field(default_factory=lambda: SimpleNamespace(constants=NEUTRAL))

    def __post_init__(self) -> None:
        self.tokens_s = self.start_s + self.token_s * self.tokens
        self.logits_s = 0.0 * self.tokens
        self.caches_s = np.zeros((2, 2))
        self.prompts_s = np.zeros(2)


def requests(
    arrival_s: list[float], prompt: list[int] | int, answer: list[int] | int,
    prefix: list[int] | None = None, shared: int = 0,
) -> Arrivals:  # fmt: skip
    """Return requests as columns."""
    number = len(arrival_s)
    whole = np.full(number, shared, dtype=np.int64)
    columns = [np.broadcast_to(np.array(value, dtype=np.int64), number).copy()
               for value in (prompt, answer)]  # fmt: skip
    names = np.array([ALONE] * number if prefix is None else prefix, dtype=np.int64)
    return Arrivals(np.array(arrival_s, dtype=float), *columns, names, whole, whole)


def priced_worker(
    model: str = "llama3.1-8b", tp: int = 1, server: str = "vllm", longest: int = 2048,
    **changes: int,
) -> Worker:  # fmt: skip
    """Return a worker on H100 with the prices of the house."""
    work = Decode(
        batch_size=1, prompt_length=longest // 2, context_length=longest,
        software=SoftwareStack(cuda_graphs=True),
    )  # fmt: skip
    problem = serving_problem(model, f"{tp}xH100", work, server, "calibrated")
    problem = replace(problem, server=problem.server.model_copy(update=changes))
    etp = tp if problem.num_experts else 1
    options = PlanOptions(sequence_parallel=False, zero_stage=0)
    return Worker(problem, options, make_strategy(tp=tp, etp=etp), longest)
