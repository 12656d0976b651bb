"""The problem of serving, and the price of one pass of one group of sequences.

The problem is a model, a system, and prefill or decode. A pass is priced for columns of strategies,
with anything else in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial, reduce

import numpy as np

from meshwright.base.arrays import Num, ceil_div, larger, positive_part, smaller, where
from meshwright.cost.communication import Collectives, CommCost, comm_cost, slowdown_s
from meshwright.cost.memory import parameters_on_device
from meshwright.cost.operator import DeviceRates
from meshwright.cost.pipeline import POSITIONS, StageLayout, jitter_fraction, stages_of
from meshwright.cost.problem import ProblemOf
from meshwright.cost.step import send_s
from meshwright.graph.op import LayerGraph, OpKind, Phase
from meshwright.search.intervals import THROUGHPUT, TPOT, TTFT, Certainty, Distances, surely
from meshwright.serve.all_reduce import PassCollectives
from meshwright.serve.closed_loop import LoopOf
from meshwright.serve.dispatch import dispatch_s
from meshwright.serve.mesh_decode import mesh_s
from meshwright.serve.operators import (
    PassCost,
    PassShape,
    cached_words,
    dependent_sums,
    host_s,
    layer_forward,
    live_bytes,
    pass_cost,
    state_bytes,
    sum_of_passes,
)
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.local_sizes import LocalLayer, local_elements
from meshwright.sharding.strategy import PlanOptions, StrategyColumns, StrategyOf
from meshwright.spec.calibration import NEUTRAL, ServingConstantsOf
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import ChipSpec
from meshwright.spec.workload import BYTES_OF, PAGED, Decode, Prefill, Server, Serves

_KEPT_PROPERTIES = ("graph", "pieces", "head", "_shardings", "rates", "efficiencies")
"""Cached properties that no constant of serving changes."""


@dataclass(frozen=True)
class ServingProblem(ProblemOf[Prefill | Decode]):
    """Prefill or decode to be priced."""

    constants: ServingConstantsOf[Num] = NEUTRAL
    """Constants of the server and of the kernels that it runs."""
    server: Server = PAGED
    """Server that runs the passes."""
    certainty: Certainty | None = None
    """Spread of measured values about prices; None: not known."""

    def ends(self, figure: str) -> Distances | None:
        """Return the distances of the ends of the interval of a figure; None: not known."""
        known = self.certainty
        return known.ends(self, figure, self.server.name) if known else None

    @property
    def latency_ends(self) -> Distances | None:
        """Distances of the ends of the interval of a pass: of an output token, or of prompts."""
        return self.ends(TPOT if self.is_decode else THROUGHPUT)

    @property
    def launches(self) -> Serves | None:
        """Launches that the server supports; None: any."""
        return self.server.launches

    def with_constants(self, constants: ServingConstantsOf[Num]) -> ServingProblem:
        """Return the problem under other constants of serving; unaffected values are kept."""
        changed = replace(self, constants=constants)
        vars(changed).update(
            {name: known for name, known in vars(self).items() if name in _KEPT_PROPERTIES}
        )
        return changed

    def rates_at(self, speed_factor: Num, work_share: Num = 1.0) -> DeviceRates:
        """Return the rates of a device; routing is part of the kernels of the experts."""
        return replace(super().rates_at(speed_factor, work_share), expert_passes=1.0)

    @property
    def collective_start_s(self) -> Num:
        """Start of a collective of a library inside a pass [s]."""
        return self.calibration.collective_launch_s * self.constants.collective_start_share

    @property
    def is_decode(self) -> bool:
        """Whether each sequence brings one token to the cache of its context."""
        return isinstance(self.workload, Decode)

    @property
    def pass_length(self) -> int:
        """New tokens of one sequence: its prompt, or one and those that a draft proposes."""
        work = self.workload
        if not isinstance(work, Decode):
            return work.prompt_length
        return 1 if work.speculation is None else 1 + work.speculation.drafted_tokens

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step of decode yields for each sequence, expected."""
        drafts = self.workload.speculation if isinstance(self.workload, Decode) else None
        return tokens_per_step(drafts.acceptance, drafts.drafted_tokens) if drafts else 1.0

    @cached_property
    def draft(self) -> ServingProblem | None:
        """Problem of the draft of a speculation under the same workload; None: no draft."""
        work = self.workload
        if not isinstance(work, Decode) or work.speculation is None:
            return None
        model = work.speculation.draft or prediction_layer(self.model)
        alone = work.model_copy(update={"speculation": None})
        return replace(self, model=model, workload=alone)

    @property
    def cached_length(self) -> int:
        """Tokens of one sequence in the cache at the end of a pass, as they are stored."""
        work = self.workload
        return work.context_length if isinstance(work, Decode) else work.prompt_length

    @property
    def past_length(self) -> float:
        """Tokens of one sequence that a pass finds in the cache: of answers, half on average."""
        work = self.workload
        if not isinstance(work, Decode):
            return 0.0
        if work.prompt_length is None:
            return float(work.context_length)
        return work.prompt_length + work.answer_length / 2.0

    @property
    def max_first_token_s(self) -> float | None:
        """Longest time to the first token of a request that is allowed [s]."""
        work = self.workload
        return work.max_time_to_first_token_s if isinstance(work, Decode) else None

    @property
    def max_latency_s(self) -> float | None:
        """Longest time to the first token, or per output token, that is allowed [s]."""
        work = self.workload
        if isinstance(work, Decode):
            return work.max_time_per_output_token_s
        return work.max_time_to_first_token_s

    @property
    def sure_latency_s(self) -> float | None:
        """Longest predicted latency with an allowed slow end [s]."""
        return surely(self.max_latency_s, self.latency_ends)

    @property
    def sure_first_token_s(self) -> float | None:
        """Longest predicted time to the first token of a request with an allowed slow end [s]."""
        return surely(self.max_first_token_s, self.ends(TTFT))

    @cached_property
    def shape(self) -> PassShape:
        """The pass through the layers."""
        precision = self.workload.precision
        return PassShape(
            new_tokens=float(self.pass_length),
            past_tokens=self.past_length,
            weight_word_bytes=precision.weight_bytes,
            cache_word_bytes=BYTES_OF[precision.kv_cache],
            kept_tokens=float(self.cached_length),
            answered_share=float(self.pass_length) if self.is_decode else 1.0,
            constants=self.constants,
            weight_format=precision.weight_format,
        )

    @cached_property
    def head(self) -> LayerGraph:
        """Final norm and logits; nothing is compared with a label."""
        whole = self.graph.head
        return replace(whole, ops=tuple(op for op in whole.ops if op.kind is not OpKind.LOSS))

    @cached_property
    def pieces(self) -> tuple[LayerGraph, ...]:
        """The kinds of layers, then the embedding, then the head."""
        return (*self.graph.layers, self.graph.embedding, self.head)


def with_stored_weights(
    workload: Prefill | Decode, model: ModelSpec, chip: ChipSpec
) -> Prefill | Decode:
    """Return the workload with weights and cache as the checkpoint of the model stores them.

    Where the format has both operands of products narrow, and the chip a rate for that, products
    are narrow. Types that the user states are kept.
    """
    stored, precision = model.weight_format, workload.precision
    changes: dict[str, object] = {}
    if stored is not None:
        changes["weight_format"] = stored
        if stored.matmul in chip.matmul_flops_per_s and "matmul" not in precision.model_fields_set:
            changes["matmul"] = stored.matmul
    if model.cache_type is not None and "kv_cache" not in precision.model_fields_set:
        changes["kv_cache"] = model.cache_type
    if not changes:
        return workload
    return workload.model_copy(update={"precision": precision.model_copy(update=changes)})


def group_counts(most: int) -> list[int]:
    """Return the numbers of groups in a pipeline: all up to 8, powers of two, and the most.

    The most is pp: more groups than stages only wait for each other, so that larger groups are
    never slower.
    """
    powers = {1 << power for power in range(most.bit_length())}
    return sorted({*range(1, min(most, 8) + 1), *powers, most})


@dataclass(frozen=True)
class StageHeld:
    """Memory of one device of a stage in a pass."""

    weights_bytes: Num
    working_bytes: Num
    """Largest transient [bytes]."""
    cache_bytes: Num
    """Key-value cache of one sequence at full length, and its states [bytes]."""


@dataclass(frozen=True)
class PassPrice:
    """One pass through all stages, and through the slowest one."""

    whole: PassCost
    """All layers and both edges, sends left out."""
    slowest_s: Num
    """Time for which one group occupies the slowest stage, its send included [s]."""
    send_s: Num
    """Time to send from one stage to the next; 0 without a pipeline [s]."""
    host_s: Num
    """Time of the server outside the kernels of the pass [s]."""
    jitter: Num
    """Share of the time added by waiting for the slowest device [1]."""
    draft_s: Num
    """Passes of a draft before it [s]."""
    held: tuple[StageHeld, ...]
    """Memory of a device of the first, the fullest middle and the last stage."""
    requests: RequestPasses | None = None
    """With requests: the passes of answers and of prompts behind this mean."""


@dataclass(frozen=True)
class RequestPasses:
    """Passes of a group of requests: those of answers, and those of prompts."""

    answers: PassPrice
    """Pass of one token for each answer in flight."""
    prompts: PassPrice
    """Pass that carries prompts: beside the answers, or alone while answers wait."""
    together: Num
    """Prompts of such a pass; below 1, the share of one prompt that fits."""
    is_mixed: bool

    def mean(self, prompts_of_pass: Num) -> PassPrice:
        """Return the mean pass when some number of prompts goes with each pass of answers.

        A share of the passes carries prompts, in place of answers alone, or after them.
        """
        share = prompts_of_pass / self.together
        kept = 1.0 - share if self.is_mixed else 1.0
        costs = [self.answers.whole, self.prompts.whole]
        whole = sum_of_passes(costs, [kept + 0.0 * share, share])

        def blended(name: str) -> Num:
            mean: Num = kept * getattr(self.answers, name) + share * getattr(self.prompts, name)
            return mean

        names = ("slowest_s", "send_s", "host_s", "draft_s")
        return replace(
            self.answers, whole=whole, held=self.prompts.held, requests=self,
            **{name: blended(name) for name in names},
        )  # fmt: skip


def passes_of(
    problem: ServingProblem, plan_options: PlanOptions, strategy: StrategyColumns
) -> PassPrice:
    """Return the price of one pass of the workload: of requests, answers with those of prompts."""
    work = problem.workload
    if isinstance(work, Decode) and work.mixes_prompts:
        request = float(work.prompt_length or 0), float(work.answer_length)
        made = price_requests(problem, plan_options, strategy, *request)
        return replace(made.answers, held=made.prompts.held, requests=made)
    check = price_passes(problem, plan_options, strategy)
    if problem.draft is None:
        return check
    draft = price_passes(problem.draft, plan_options, strategy)
    return with_drafts(problem, strategy, check, draft, draft)


def with_drafts(
    problem: ServingProblem, strategy: StrategyColumns, check: PassPrice, first: PassPrice,
    later: PassPrice,
) -> PassPrice:  # fmt: skip
    """Return a step: tokens drafted one after another, then the pass that checks them.

    The host schedules both at once, so that its time is that of the check. A layer of multi-token
    prediction shares its tables with the model.

    Parameters
    ----------
    first, later
        Passes of the draft: for the first token, with its prompts, and for later ones.
    """
    work = problem.workload
    assert isinstance(work, Decode)
    assert work.speculation is not None
    others = work.speculation.drafted_tokens - 1.0
    whole = sum_of_passes([check.whole, first.whole, later.whole], [1.0, 1.0, others])
    drafts_s = first.slowest_s - first.host_s + others * (later.slowest_s - later.host_s)
    tables = 0.0 if work.speculation.draft else 2.0 - float(problem.model.tied_embeddings)
    shared = tables * _shared_table_bytes(problem, strategy)
    held = tuple(
        StageHeld(
            mine.weights_bytes + draft.weights_bytes - shared,
            mine.working_bytes,
            mine.cache_bytes + draft.cache_bytes,
        )
        for mine, draft in zip(check.held, first.held, strict=True)
    )
    counted = {name: getattr(whole, name) for name in ("flops", "traffic_bytes", "link_bytes")}
    return replace(
        check, whole=replace(check.whole, **counted), held=held, draft_s=drafts_s,
        slowest_s=check.slowest_s + drafts_s,
    )  # fmt: skip


def price_requests(
    problem: ServingProblem, plan_options: PlanOptions, strategy: StrategyColumns, prompt: Num,
    answer: Num, shape: PassShape | None = None, waiting: Num = 0.0,
) -> RequestPasses:  # fmt: skip
    """Return the passes of groups of requests in flight.

    Of n answers n / answer length end in a step, and equally many prompts pass: a pass carries that
    many, or those that wait, at least one, and no more than its tokens have room for. Products,
    elementwise work and collectives see the tokens of both kinds, attention each kind on its own.

    Parameters
    ----------
    strategy
        ``micro_batch_size`` answers of each group.
    prompt, answer
        Tokens of a request.
    shape
        Shape of the pass of answers, where it is not that of the workload.
    waiting
        Prompts that wait together, where they are more than those that come in a step.
    """
    shape, server, mine = shape or problem.shape, problem.server, strategy.micro_batch_size
    answers = price_passes(problem, plan_options, strategy, shape)
    prompt_alone = replace(shape, new_tokens=prompt, past_tokens=0.0, answered_share=1.0)
    steps = answer / problem.tokens_per_step
    together = larger(larger(mine / steps, waiting), 1.0)
    together = smaller(together, room_of_pass(server, prompt))
    alone = price_passes(
        problem, plan_options, replace(strategy, micro_batch_size=0.0 * mine + 1.0), prompt_alone
    )
    beside = mine * shape.new_tokens * float(server.mixes_phases)
    rows = beside + together * prompt
    both = price_passes(
        problem, plan_options, replace(strategy, micro_batch_size=rows),
        replace(shape, new_tokens=1.0, answered_share=(beside + together) / rows),
    )  # fmt: skip
    core_s = together * alone.whole.attention_s
    core_s = core_s + answers.whole.attention_s * float(server.mixes_phases)
    made = RequestPasses(
        answers,
        with_core(both, answers, core_s, strategy.pp),
        together,
        server.mixes_phases,
    )
    if problem.draft is None:
        return made
    draft = price_requests(problem.draft, plan_options, strategy, prompt, steps)
    checked = partial(with_drafts, problem, strategy)
    return replace(
        made,
        answers=checked(made.answers, draft.answers, draft.answers),
        prompts=checked(made.prompts, draft.prompts, draft.answers),
    )


def loop_of(
    made: RequestPasses, strategy: StrategyOf[Num], clients: Num, request: tuple[Num, Num],
    groups: Num, problem: ServingProblem, *, are_equal: bool = False,
) -> LoopOf[Num]:  # fmt: skip
    """Return the inputs of the closed loop on one replica: its clients and the times of its passes.

    A prompt delays the other groups of a pipeline in its slowest stage only, its own group and
    itself in all of them.

    Parameters
    ----------
    request
        Tokens of prompt and answer.
    are_equal
        All requests have the same length: those that start together stay together for long.
    """
    server, constants = problem.server, problem.constants
    prompt, answer = request
    kept, stages = float(made.is_mixed), strategy.pp
    own_s = round_s(made.prompts, stages, 1.0) - kept * round_s(made.answers, stages, 1.0)
    turn_s = made.prompts.slowest_s - kept * made.answers.slowest_s
    turn_s = turn_s * (1.0 + made.answers.jitter)
    room = room_of_pass(server, prompt)
    return LoopOf(
        clients=clients,
        answer_tokens=answer,
        decode_s=round_s(made.answers, stages, groups),
        more_s=positive_part(where(groups > 1, turn_s, own_s)) / made.together,
        own_s=positive_part(own_s) / made.together,
        passes_of_prompt=kept * larger(1.0 / room, 1.0),
        prompts_of_pass=room + 0.0 * clients,
        steps_ahead=constants.steps_ahead,
        companions=positive_part(constants.prompts_together - 1.0) * float(are_equal),
    )


def round_s(price: PassPrice, stages: Num, groups: Num) -> Num:
    """Return a round: a pass through all stages, or the turns of all groups in the slowest [s]."""
    sends = (stages - 1.0 + (stages > 1)) * price.send_s
    pass_s = price.whole.total_s + sends + price.host_s + price.draft_s
    waiting_s = groups * price.slowest_s * (groups > 1)
    return larger(pass_s, waiting_s) * (1.0 + price.jitter)


def room_of_pass(server: Server, prompt: Num) -> Num:
    """Return the prompts for which a pass has room: whole ones, or also a part of one."""
    room: Num = float(server.most_pass_tokens) / prompt
    return room if server.cuts_prompts else larger(np.floor(room), 1.0)


def with_core(both: PassPrice, answers: PassPrice, core_s: Num, num_stages: Num) -> PassPrice:
    """Return a pass of prompts and answers with the attention of each kind on its own.

    Parameters
    ----------
    both
        Its products, elementwise work and collectives see the tokens of both kinds.
    core_s
        Attention of all stages [s].
    """
    more_s = (core_s - both.whole.attention_s) / num_stages
    return replace(
        both,
        whole=replace(both.whole, attention_s=core_s),
        host_s=answers.host_s,
        slowest_s=both.slowest_s - both.host_s + answers.host_s + more_s,
    )


def price_passes(
    problem: ServingProblem, plan_options: PlanOptions, strategy: StrategyColumns,
    shape: PassShape | None = None,
) -> PassPrice:  # fmt: skip
    """Return the price of one pass for each row of the columns.

    Parameters
    ----------
    shape
        Shape of each pass, where it is not that of the workload.
    """
    network = problem.network(plan_options.axis_order, strategy)
    collectives = PassCollectives(network, problem.collective_start_s, problem.constants)
    price_piece = partial(passed_piece, problem, plan_options, strategy, collectives, shape)
    costs = [price_piece(piece, index) for index, piece in enumerate(problem.pieces)]
    layout = stages_of(problem, plan_options, strategy)
    send = send_s(problem, plan_options, strategy, collectives) * (strategy.pp > 1)
    host = host_s(problem.constants, strategy.micro_batch_size)
    return PassPrice(
        whole=sum_of_passes(costs, layout.total),
        slowest_s=_slowest_stage_s(costs, layout, send) + host,
        send_s=send,
        host_s=host,
        jitter=jitter_fraction(_devices_together(strategy), problem.calibration.jitter),
        draft_s=0.0 * strategy.tp,
        held=tuple(_held(problem, strategy, costs, layout, position) for position in POSITIONS),
    )


def reserved_bytes(
    problem: ServingProblem, plan_options: PlanOptions, strategy: StrategyColumns,
    length: Num | None = None,
) -> tuple[Num, ...]:  # fmt: skip
    """Return the memory that a server reserves for the transients of its largest pass [bytes].

    On one device of the first, the fullest middle and the last stage, for any passes.

    Parameters
    ----------
    length
        Tokens of the prompts that fill the pass; those of the workload where it is not given, or
        one prompt as long as the pass.
    """
    most = float(problem.server.most_pass_tokens)
    stated = float(problem.workload.prompt_length or most)
    tokens = smaller(stated if length is None else length, most)
    shape = replace(problem.shape, new_tokens=tokens, past_tokens=0.0, answered_share=1.0)
    rows = replace(strategy, micro_batch_size=most / tokens + 0.0 * strategy.micro_batch_size)
    sizes = []
    for index, piece in enumerate(problem.pieces):
        local = _local_layer(problem, plan_options, rows, piece, index, shape)
        sizes.append(_working_bytes(problem, piece, local, shape))
    layout = stages_of(problem, plan_options, strategy)
    return tuple(
        reduce(larger, [
            size * ((count > 0) * 1.0)
            for size, count in zip(sizes, layout.counts[position], strict=True)
        ])
        for position in POSITIONS
    )  # fmt: skip


def _held(
    problem: ServingProblem, strategy: StrategyColumns, costs: Sequence[PassCost],
    layout: StageLayout, position: str,
) -> StageHeld:  # fmt: skip
    """Return the memory of the stage at a position; one device has a tied table once."""
    held = sum_of_passes(costs, layout.counts[position])
    weights = held.weight_bytes
    if problem.graph.tied and position == "first":
        weights = weights - _shared_table_bytes(problem, strategy) * (strategy.pp == 1)
    return StageHeld(weights, held.working_bytes, held.cache_bytes)


def _slowest_stage_s(costs: Sequence[PassCost], layout: StageLayout, send: Num) -> Num:
    """Return the seconds for which one group occupies the slowest stage, its send included."""
    times = []
    for position in POSITIONS:
        counts = layout.counts[position]
        terms = [cost.total_s * count for cost, count in zip(costs, counts, strict=True)]
        times.append(sum(terms[1:], terms[0]))
    return reduce(larger, times) + send


def _devices_together(strategy: StrategyOf[Num]) -> Num:
    """Return the devices that wait for each other: a replica, or all where experts join them."""
    replica = strategy.tp * strategy.cp * strategy.pp
    joins = strategy.ep * strategy.etp > strategy.tp * strategy.cp
    return where(joins, strategy.num_devices, replica)


def passed_piece(
    problem: ServingProblem, plan_options: PlanOptions, strategy: StrategyColumns,
    collectives: Collectives, shape: PassShape | None, piece: LayerGraph, index: int,
) -> PassCost:  # fmt: skip
    """Return one pass through a piece: whole, or as two halves where batches overlap.

    Dispatch and combination of one half take the time in which the other half is computed:
    of 2 c computed and 2 w on its way, max(w - c, 0) of each w is seen, and computation under it
    takes longer by the share that links take from it.
    """
    whole = piece_cost(problem, plan_options, strategy, piece, index, collectives, shape)
    if not problem.workload.two_batch_overlap or not np.any(whole.ep_comm_s > 0):
        return whole
    halves = replace(strategy, micro_batch_size=strategy.micro_batch_size / 2.0)
    half = piece_cost(problem, plan_options, halves, piece, index, collectives, shape)
    computed_s = half.total_s - half.ep_comm_s
    hidden_s = smaller(half.ep_comm_s, computed_s)
    lost_s = slowdown_s(hidden_s, computed_s, problem.calibration.overlap_slowdown)
    both = sum_of_passes([replace(half, ep_comm_s=half.ep_comm_s - hidden_s + lost_s)], [2.0])
    is_split = whole.ep_comm_s > 0
    kept = ("weight_bytes", "cache_bytes")
    return PassCost(
        **{
            name: where(is_split, getattr(half if name in kept else both, name), value)
            for name, value in vars(whole).items()
        }
    )


def piece_cost(
    problem: ServingProblem, plan_options: PlanOptions, strategy: StrategyColumns,
    piece: LayerGraph,
    index: int, collectives: Collectives, shape: PassShape | None = None,
) -> PassCost:  # fmt: skip
    """Return one pass through one kind of layer, or through an edge."""
    rates = problem.rates
    shape = shape or problem.shape
    local = _local_layer(problem, plan_options, strategy, piece, index, shape)
    degrees, length = local.degrees, local.sequence_length
    total, windows = layer_forward(piece, local, rates, shape)
    calls = [
        c for c in problem.derived_shardings(plan_options)[index].calls if c.phase is Phase.FORWARD
    ]
    sizes = piece.bind(length * degrees.micro_batch_size, length)
    word = rates.activation_bytes

    def priced(some: Sequence[CollectiveCall]) -> CommCost:
        return comm_cost(some, windows, sizes, strategy, plan_options, collectives.time_s, word)

    comm = priced(calls)
    dispatches = [
        call for call in calls if call.axis == "ep" and "routed_tokens" in call.tensor.dims
    ]
    experts = problem.deduplicated_experts
    links = collectives.network.at_full_rate.links("ep") if dispatches else None
    if links is not None and experts is not None:
        # The way there is in the type of products, the way back in that of activations.
        words = min(word, max(rates.matmul_word_bytes, 1.0)), word
        ep_s = priced([call for call in calls if call not in dispatches]).ep_s
        for call, each in zip(dispatches, words, strict=True):
            visits = local_elements(call.tensor, call.split, sizes, strategy)
            tokens, width = visits / (experts.top_k * piece.sizes["hidden"]), piece.sizes["hidden"]
            ep_s = ep_s + dispatch_s(tokens, each * width, experts, links, shape.constants)
        comm = replace(comm, ep_s=ep_s)
    if problem.num_experts and not plan_options.sequence_parallel:
        stays = strategy.ep * strategy.etp == strategy.tp
        alone = priced(_calls_of_tokens_that_stay(calls))
        comm = CommCost(
            **{
                entry.name: where(stays, getattr(alone, entry.name), getattr(comm, entry.name))
                for entry in fields(CommCost)
            }
        )
    mesh, links_s = problem.system.chip.core_mesh, 0.0 * strategy.tp
    if mesh is not None and shape.reads_cache:
        links_s = links_s + mesh_s(piece, local, rates, shape, mesh)
    is_edge = index >= len(problem.graph.layers)
    weights: Num = 0.0
    for op in piece.ops:
        dense, expert = parameters_on_device(replace(piece, ops=(op,)), plan_options, strategy)
        weights = weights + (dense + expert) * (word if is_edge else shape.stored_bytes(op, rates))
    return pass_cost(
        total, comm, rates, _working_bytes(problem, piece, local, shape), weights,
        _cache_bytes(shape, piece, local, word),
        dependent_sums(piece) * shape.constants.reduction_s, links_s,
        shape.constants.kernel_start_s, 0.0 * strategy.tp,
    )  # fmt: skip


def _local_layer(
    problem: ServingProblem, plan_options: PlanOptions, strategy: StrategyColumns,
    piece: LayerGraph,
    index: int, shape: PassShape,
) -> LocalLayer:  # fmt: skip
    """Return the sizes of a piece on one device; the head sees one token of a sequence only."""
    length = shape.new_tokens
    if index == len(problem.pieces) - 1:
        answered = strategy.micro_batch_size * shape.answered_share
        strategy, length = replace(strategy, micro_batch_size=answered), 1.0
    return LocalLayer(
        sizes=piece.sizes,
        axes=problem.derived_shardings(plan_options)[index].axes,
        degrees=strategy,
        sequence_length=length,
        expert_load_imbalance=problem.workload.expert_load_imbalance,
    )


def _working_bytes(
    problem: ServingProblem, piece: LayerGraph, local: LocalLayer, shape: PassShape
) -> Num:
    """Return the largest transient of an operator, with the streams to and from a stage [bytes]."""
    rates = problem.rates
    largest = reduce(larger, [live_bytes(op, local, rates, shape) for op in piece.ops])
    stream = 2.0 * rates.activation_bytes * local.token_shard * float(problem.model.hidden_size)
    return largest + stream


def _calls_of_tokens_that_stay(calls: Sequence[CollectiveCall]) -> list[CollectiveCall]:
    """Return the collectives of a layer with experts split within the group of tp.

    Each rank holds all tokens there: it computes its part of the experts, adds up the results of
    its tokens, and one sum over tp replaces dispatch and combination.
    """
    kept = [call for call in calls if "routed_tokens" not in call.tensor.dims]
    return [
        replace(call, kind=CollectiveKind.ALL_REDUCE)
        if call.kind is CollectiveKind.ALL_GATHER and call.axis == "tp"
        else call
        for call in kept
    ]


def _cache_bytes(shape: PassShape, piece: LayerGraph, local: LocalLayer, word: float) -> Num:
    """Return the cache of one sequence in one layer on one device.

    Of keys and values cp splits the tokens, of states the heads.
    """
    total: Num = 0.0
    for op in piece.ops:
        if op.recurrence is not None:
            total = total + state_bytes(op, local, word) / local.degrees.cp
        if op.attention is not None:
            words = cached_words(op.attention, local, shape.kept_tokens, local.degrees.cp)
            total = total + shape.cache_word_bytes * words
    return total


def _shared_table_bytes(problem: ServingProblem, strategy: StrategyColumns) -> Num:
    """Return the bytes of a table that one device holds once for the lookup and for the logits."""
    rows = ceil_div(problem.model.vocab_size, strategy.tp)
    return problem.rates.activation_bytes * rows * problem.model.hidden_size


def tokens_per_step(acceptance: float, drafted_tokens: int) -> float:
    """Return the tokens that a step is expected to yield: those accepted, and one of the model.

    With k drafted tokens, each accepted with probability a where those before it were,

        1 + a + ... + a^k = (1 - a^(k + 1)) / (1 - a).

    Assumes: equal and independent chances of all tokens.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), equation 1.
    """
    return sum(acceptance**accepted for accepted in range(drafted_tokens + 1))


def prediction_layer(model: ModelSpec) -> ModelSpec:
    """Return a layer of multi-token prediction as a draft: one of the last kind, and both tables.

    Its projection from two hidden vectors to one is left out.
    Source: DeepSeek-V3 technical report (arXiv 2412.19437), section 2.2.
    """
    kind = model.layer_kinds[model.layer_pattern[-1]]
    changes = {"name": f"{model.name}-mtp", "layer_kinds": (kind,), "layer_pattern": (0,)}
    return model.model_copy(update=changes)
