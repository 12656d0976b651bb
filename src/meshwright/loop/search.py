"""Search of the fastest step: a plan of training, an engine, and how they share the devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.base.errors import InfeasibleError, MeshwrightError
from meshwright.base.units import format_bytes
from meshwright.cost.problem import Problem
from meshwright.loop.question import Park, Sharing, Work
from meshwright.loop.rollout import Engine, engines
from meshwright.loop.step import (
    FROZEN_BYTES,
    KNOBS,
    Step,
    Trainer,
    reshard_s,
    weight_bytes,
)
from meshwright.serve.passes import ServingProblem
from meshwright.sharding.space import Choices
from meshwright.spec.system import SystemSpec
from meshwright.train.leading import CLOSED_FORM, lead, nothing_fits
from meshwright.train.price import candidates
from meshwright.train.space import SearchSpace

TOP = 4
"""Leading plans of training that are combined with every engine."""
KEPT_SHARE = 0.5
"""Share of a device of an engine that never sleeps, where none is stated: the default of verl."""
PARTS_OF_SYSTEM = 8
"""Parts in which devices are dealt to both roles."""


@dataclass(frozen=True)
class Asked:
    """The question: the work, both problems, and the choices that are fixed."""

    work: Work
    sharing: Sharing
    training: Problem
    serving: ServingProblem
    allowed: Mapping[str, Sequence[object]]

    @property
    def system(self) -> SystemSpec:
        """System that both roles share."""
        return self.training.system

    @property
    def wakes_s(self) -> float:
        """Time in which weights pass to the engine over all devices [s]."""
        return reshard_s(self.training, weight_bytes(self.training), self.system.num_alive)

    @property
    def capacity_bytes(self) -> float:
        """Memory of a device [bytes]."""
        return self.system.chip.main_memory.capacity_bytes

    def on(self, train: int) -> Asked:
        """Return the question with some devices for training and the others for rollouts."""
        alive = [d for d in range(self.system.num_devices) if d not in self.system.dead_devices]

        def without(some: Sequence[int]) -> SystemSpec:
            return self.system.model_copy(
                update={"dead_devices": (*self.system.dead_devices, *some)}
            )

        return replace(
            self,
            training=replace(self.training, system=without(alive[train:])),
            serving=replace(self.serving, system=without(alive[:train])),
        )


@dataclass(frozen=True)
class Answered:
    """The best step, and the proof."""

    step: Step
    lower_bound_s: float
    """No combination takes less [s]; with roles apart, none of the splits that were tried."""
    num_combinations: int
    """Combinations of a plan of training, an engine and parked state that were looked at."""
    runners_up: tuple[Step, ...]
    """Best steps of other engines or other numbers of devices."""


def trainers(asked: Asked, reserved_bytes: float) -> tuple[tuple[Trainer, ...], float]:
    """Return the leading plans of training that leave some memory of each device free.

    And a bound on all parts of training in a step of any plan [s].

    Raises
    ------
    InfeasibleError
        None fits.
    """
    problem, work = asked.training, asked.work
    kept = 1.0 - problem.nominal_calibration.memory_margin_fraction
    smaller = _with_capacity(problem, asked.capacity_bytes - reserved_bytes / kept)
    choices = Choices({name: tuple(values) for name, values in asked.allowed.items()})
    leaders, _ = lead(SearchSpace(smaller, choices), CLOSED_FORM, top=TOP)
    if not leaders.placed:
        beside = f", with {format_bytes(reserved_bytes)} for the other roles"
        raise InfeasibleError(f"{nothing_fits(smaller, leaders.result)}{beside}")
    entries = [*leaders.placed, *([leaders.fastest] if leaders.fastest else [])]
    pairs = [(one.candidate.strategy, one.candidate.plan_options) for one in entries]
    launches = {pair: one.candidate.frameworks for pair, one in zip(pairs, entries, strict=True)}
    distinct = list(dict.fromkeys(pairs))
    found = tuple(
        Trainer(work, problem, replace(candidate, frameworks=launches[pair]))
        for pair, candidate in zip(distinct, candidates(problem, distinct), strict=True)
    )
    best = found[0].candidate.estimate
    # Forward passes are a third of the FLOPs of the model, at most at the peak.
    pass_s = best.mfu_causal * best.step_time_s / 3.0 * work.num_mini_batches
    updates = work.num_updates * (1 + work.models.has_critic)
    bound_s = updates * leaders.coverage.lower_bound_s + len(work.passes) * pass_s
    return found, bound_s


def _with_capacity(problem: Problem, capacity_bytes: float) -> Problem:
    """Return a problem on devices with another capacity of the main memory."""
    if capacity_bytes <= 0.0:
        message = "the other roles leave no memory for training"
        raise InfeasibleError(message)
    chip = problem.system.chip
    last = chip.main_memory.model_copy(update={"capacity_bytes": capacity_bytes})
    memories = (*chip.memories[:-1], last)
    system = problem.system.model_copy(
        update={"chip": chip.model_copy(update={"memories": memories})}
    )
    return replace(problem, system=system)


def ranked_engines(asked: Asked, batches: int) -> list[tuple[float, Engine]]:
    """Return each engine that fits alone, with its least time for a batch [s], fastest first.

    Raises
    ------
    InfeasibleError
        None fits.
    """
    share = asked.sharing.memory_share or asked.serving.server.memory_fraction
    found = [
        (engine.rollout(share, batches).total_s / batches, engine)
        for engine in engines(asked.work, asked.serving, asked.sharing.engine_tp)
        if engine.places(share) >= 1.0
    ]
    if not found:
        message = f"no engine has room for a sample at a share of {share:.2f} of each device"
        raise InfeasibleError(message)
    return sorted(found, key=lambda entry: entry[0])


def _reserved(asked: Asked, park: Park, buffers: float) -> float:
    """Return the least memory of other roles in an update [bytes]: sharded over all devices."""
    optimizer, work = asked.training.workload.optimizer, asked.work
    params = weight_bytes(asked.training) / FROZEN_BYTES / asked.system.num_alive
    frozen = int(work.models.has_reference) + int(work.has_reward_model)
    each = FROZEN_BYTES * frozen * (park != "all")
    if work.models.has_critic:
        each += optimizer.weight_bytes_per_param * (park != "all")
        each += optimizer.state_bytes_per_param * (park == "none")
    return buffers + params * each


def colocated(asked: Asked) -> Answered:
    """Return the fastest step with all roles on the same devices, one after another.

    Every engine is combined with each leading plan of training and each way to park its state,
    unless its bound says that it cannot lead. The bound of all is that of a rollout with all memory
    and of training with all but the buffers of an engine asleep.

    Raises
    ------
    InfeasibleError
        No combination fits; names the phase that lacks memory, and the option that lowers it.
    """
    sharing, ranked = asked.sharing, ranked_engines(asked, 1)
    wakes_s = asked.wakes_s * bool(asked.work.lengths.mean)
    buffers = max(engine.buffers_bytes for _, engine in ranked)
    if sharing.keeps_engine:
        buffers = asked.capacity_bytes * (sharing.memory_share or KEPT_SHARE)
    leading, train_bound_s = trainers(asked, buffers)
    bound_s = ranked[0][0] + train_bound_s + wakes_s
    best: dict[Any, Step] = {}
    closest, looked = list[Step](), 0
    for park in sharing.parks:
        for trainer in _beside_engine(asked, leading, park, buffers):
            parking_s = trainer.parking_s(park)
            others_s = sum(trainer.parts_s.values()) + wakes_s
            for least_s, engine in ranked:
                looked += 1
                now = min((one.total_s for one in best.values()), default=float("inf"))
                if parking_s is None or least_s + others_s + parking_s >= now * SLOWER:
                    continue
                step = _in_turn(asked, trainer, engine, park, parking_s, wakes_s)
                if step is None:
                    continue
                if step.lacking_bytes():
                    closest.append(step)
                    continue
                key = engine.serving.strategy
                if key not in best or step.total_s < best[key].total_s:
                    best[key] = step
    if not best:
        raise InfeasibleError(_lacking(asked, closest))
    steps = sorted(best.values(), key=lambda one: one.total_s)
    return Answered(steps[0], min(bound_s, steps[0].total_s), looked, tuple(steps[1:TOP]))


def _beside_engine(
    asked: Asked, leading: tuple[Trainer, ...], park: Park, buffers: float
) -> tuple[Trainer, ...]:
    """Return the leading plans of training that fit beside the other roles; none: none does."""
    fitting = tuple(one for one in leading if _fits_training(asked, one, park, buffers))
    if fitting:
        return fitting
    try:
        return trainers(asked, _reserved(asked, park, buffers))[0]
    except InfeasibleError:
        return ()


SLOWER = 1.5
"""Steps this much slower than the best so far are not priced."""


def _in_turn(
    asked: Asked, trainer: Trainer, engine: Engine, park: Park, parking_s: float, wakes_s: float
) -> Step | None:
    """Return the step of a combination; None: the engine has no room beside training."""
    sharing, capacity = asked.sharing, asked.capacity_bytes
    resident = sum(trainer.residents("rollout", park).values()) + trainer.held_bytes("buffers")
    share = sharing.memory_share or (KEPT_SHARE if sharing.keeps_engine else None)
    if share is None:
        share = asked.serving.server.memory_fraction * (capacity - resident) / capacity
    if share <= 0.0 or engine.places(share) < 1.0:
        return None
    return Step(trainer, engine, share, wakes_s, parking_s, park, sharing)


def _lacking(asked: Asked, closest: Sequence[Step]) -> str:
    """Return the phase that lacks memory in the leanest combination, and the option for it."""
    if not closest:
        return (
            "no engine has room beside the state of training, and no training beside an engine; "
            "an engine that sleeps and parked state (--park all) leave the most room"
        )
    step = min(closest, key=Step.lacking_bytes)
    phase = max(step.bytes_of_phases, key=lambda name: step.bytes_of_phases[name])
    sizes = f"{format_bytes(step.bytes_of_phases[phase])} of {format_bytes(asked.capacity_bytes)}"
    return (
        f"nothing fits: the leanest, {step.trainer.candidate.text} beside an engine of "
        f"tp{step.engine.serving.strategy.tp:.0f}, needs {sizes} in its fullest phase, "
        f"{phase}; {KNOBS[phase]} lowers it first"
    )


def train_sizes(system: SystemSpec) -> list[int]:
    """Return the numbers of devices of training that are tried where roles are apart."""
    alive, host = system.num_alive, system.domain_size
    unit = host if alive >= 2 * host else 1
    units = alive // unit
    steps = {max(round(units * part / PARTS_OF_SYSTEM), 1) for part in range(1, PARTS_OF_SYSTEM)}
    return sorted(unit * number for number in steps if unit * number < alive)


def apart(asked: Asked) -> Answered:
    """Return the fastest step with roles on devices of their own, over the split of devices.

    More devices of training shorten it and lengthen the rollout, so that the best split lies where
    both are equal, without staleness where the gain of one is the loss of the other: halving finds
    it among the sizes that are tried.

    Raises
    ------
    InfeasibleError
        No split fits.
    """
    sizes, stated = train_sizes(asked.system), asked.sharing.train_devices
    if stated is not None:
        sizes = [stated]
    found: dict[int, Step] = {}
    bounds, whys = list[float](), list[str]()
    low, high = 0, len(sizes) - 1
    while low <= high:
        middle = (low + high) // 2
        try:
            step, bound_s = _beside(asked, sizes[middle])
        except _TrainingError as error:
            whys.append(str(error))
            low = middle + 1
            continue
        except MeshwrightError as error:
            whys.append(str(error))
            high = middle - 1
            continue
        found[sizes[middle]] = step
        bounds.append(bound_s)
        if _wants_more_training(step):
            low = middle + 1
        else:
            high = middle - 1
    if not found:
        raise InfeasibleError(f"no split of {asked.system.num_alive} devices fits: {whys[0]}")
    steps = sorted(found.values(), key=lambda one: one.total_s)
    best_s = steps[0].total_s
    return Answered(steps[0], min(*bounds, best_s), len(found), tuple(steps[1:TOP]))


def _wants_more_training(step: Step) -> bool:
    """Tell whether another device of training gains more than rollouts lose by it."""
    if step.sharing.staleness:
        return step.train_s > step.rollout_s
    train = step.trainer.problem.system.num_alive
    return step.train_s / train > step.rollout_s / (step.num_devices - train)


class _TrainingError(InfeasibleError):
    """Training does not fit on its devices."""


def _beside(asked: Asked, train: int) -> tuple[Step, float]:
    """Return the fastest step on some devices of training, and a bound of it [s]."""
    sharing, part = asked.sharing, asked.on(train)
    tried, whys = [], ""
    for park in sharing.parks:
        try:
            known, bound_s = trainers(part, _reserved(part, park, 0.0))
        except InfeasibleError as error:
            whys = str(error)
            continue
        entries = [
            (sum(one.parts_s.values()) + moved_s, one, park, moved_s, bound_s)
            for one in known if (moved_s := one.parking_s(park)) is not None
            and _fits_training(asked, one, park)
        ]  # fmt: skip
        tried += entries
        if entries:
            break  # parked state only adds time
    if not tried:
        raise _TrainingError(whys or f"training does not fit on {train} devices")
    _, trainer, park, moved_s, train_bound_s = min(tried, key=lambda entry: entry[0])
    least_s, engine = ranked_engines(part, sharing.batches)[0]
    share = sharing.memory_share or asked.serving.server.memory_fraction
    step = Step(trainer, engine, share, asked.wakes_s, moved_s, park, sharing)
    both = (least_s, train_bound_s)
    return step, asked.wakes_s + (max(both) if sharing.staleness else sum(both))


def _fits_training(asked: Asked, trainer: Trainer, park: Park, beside_bytes: float = 0.0) -> bool:
    """Tell whether an update fits a device, beside some bytes of an engine."""
    parts = trainer.candidate.estimate.memory_parts_bytes
    held = {**parts, **trainer.residents("update", park)}
    return sum(held.values()) + beside_bytes <= asked.capacity_bytes


def found_step(asked: Asked) -> Answered:
    """Return the fastest step of a question, with the roles as it shares them."""
    return apart(asked) if asked.sharing.apart else colocated(asked)


def relaxed(asked: Asked) -> Iterator[tuple[str, Asked]]:
    """Yield the question with one of the choices that a user fixed left open, cheapest first."""
    sharing = asked.sharing
    others = {
        "--memory-share": replace(sharing, memory_share=None),
        "--engine-tp": replace(sharing, engine_tp=None),
        "--park": replace(sharing, park=None),
        "--with train_devices": replace(sharing, train_devices=None),
        "--with keeps_engine": replace(sharing, keeps_engine=False),
    }
    for option, other in others.items():
        if other != sharing:
            yield option, replace(asked, sharing=other)
    for fixed in asked.allowed:
        left = {name: values for name, values in asked.allowed.items() if name != fixed}
        yield fixed.replace("_", " "), replace(asked, allowed=left)
