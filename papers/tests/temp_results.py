"""Every result that the paper states, in our words, and the claims that judge it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """A result of the paper: where it stands, what it says, and which claims judge it."""

    where: str
    says: str
    claims: tuple[str, ...]
    """How the names of these claims begin: each has at least one."""


RESULTS = (
    Result("abstract", "1.7x throughput", ("mean speedup over the six baselines",)),
    Result("section I", "1.9x power efficiency", ("tokens for each joule over the baselines",)),
    Result("Fig. 4b", "collectives take 40 % of the time", ("collectives in the time",)),
    Result("Fig. 4b", "links are used below 55 %",
           ("use of the links over", "range of the use of the links")),
    Result("Fig. 4c", "memory grows 1.4 and 2.1 times", ("memory growth by copies",)),
    Result("Fig. 4c", "out of memory with copies", ("Llama3 70B fits", "out of memory with tp")),
    Result("Fig. 5a", "seven hops and a tail of seven times", ("hops of the wrap", "tail latency")),
    Result("Fig. 5b", "messages that share a link take longer", ("latency of two messages",)),
    Result("Fig. 7a", "up to six of nine groups have no ring", ("groups of six without a ring",)),
    Result("Fig. 7c", "over 30 % of the use of dies is lost", ("use of the dies lost",)),
    Result("Fig. 8", "who uses which weight in which round",
           ("weights that four dies", "weights that the last")),
    Result("section V", "activations are three times the weights", ("activations over weights",)),
    Result("Fig. 9", "fastest over 8 to 16 dies", ("fastest degree, one layer",)),
    Result("Fig. 9", "most efficient over 4 to 8 dies",
           ("degree of the most tokens for each joule, one", "largest degree within")),
    Result("Fig. 9", "4 to 16 dies are the best trade-off", ("best trade-off",)),
    Result("Fig. 13", "speedup over each baseline", ("speedup over",)),
    Result("Fig. 13", "collective time falls by 14 to 38 %", ("collective time saved against",)),
    Result("Fig. 13", "49 to 82 % of the memory", ("peak memory over that of the baselines",)),
    Result("Fig. 13", "within 10 % at 175B", ("difference of peak memory at 175B",)),
    Result("Fig. 13", "baselines out of memory", ("models for which some baseline",)),
    Result("Fig. 14", "total power of 88.6 to 98.6 %", ("total power over",)),
    Result("Fig. 14", "power efficiency of 1.2 to 1.85 times", ("tokens for each joule over",)),
    Result("Fig. 15", "1.16 times a GPU cluster", ("wafer with TEMP over GPUs",)),
    Result("Fig. 15", "GPUs beat a wafer with Megatron-3", ("wafer with Megatron-3 slower",)),
    Result("Fig. 15", "faster than Megatron-3 on a wafer", ("wafer with TEMP over wafer",)),
    Result("Fig. 16", "1.21x by streams, 1.14x by placement",
           ("mean gain of tensor streams", "mean gain of placement")),
    Result("Fig. 16", "both gains grow with the model",
           ("gain of tensor streams grows", "gain of placement and routing grows")),
    Result("Fig. 16", "streams bring more", ("tensor streams bring more",)),
    Result("Fig. 16", "FSDP trains every model", ("models that FSDP in device order",)),
    Result("Figs. 17, 18", "the best mixes", ("best mix for",)),
    Result("Fig. 19", "1.2 to 1.6 times on several wafers", ("throughput over the baselines on",)),
    Result("Fig. 19", "bubbles fall by 4 to 14 %", ("bubble time saved",)),
    Result("Fig. 19", "collectives of a stage fall by 3 to 22 %", ("collective time of a stage",)),
    Result("Fig. 20", "cliff at 35 % of dead links", ("rate of dead links",)),
    Result("Fig. 20", "nearly 80 % without a quarter of the cores", ("throughput with a quarter",)),
    Result("takeaway 1", "8 to 16 members are best",
           ("degree of tatp in the best mix", "fastest degree on a full wafer")),
    Result("takeaway 2", "what goes together", ("best mix of small", "best mix of large")),
    Result("takeaway 3", "shorter pipelines, 8 or 16 members",
           ("streams shorten the pipeline", "degree of tatp over several wafers")),
    Result("section III-B", "40 h and over 1000 h of integer programs",
           ("time of the integer program on",)),
    Result("Fig. 14", "computing is over half of the power", ("share of computing",)),
    Result("Fig. 14", "communication draws 2 to 11 points less",
           ("power of communication below",)),
    Result("Fig. 21", "errors below 5 %, correlation above 0.99",
           ("mean error of", "least correlation of", "regression: correlation")),
    Result("section VIII-H", "3 minutes, 200 times faster than a program",
           ("search time of one wafer", "search time of the integer program")),
)  # fmt: skip
"""Figures of Table I, Table II and section II are the setting of all of them."""


def unjudged(names: list[str]) -> list[str]:
    """Return what the paper says and no claim judges, given the names of all claims."""
    return [
        f"{result.where}: {result.says} ({start})"
        for result in RESULTS
        for start in result.claims
        if not any(name.startswith(start) for name in names)
    ]
