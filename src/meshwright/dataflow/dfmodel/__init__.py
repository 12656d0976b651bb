"""Dataflow graphs under the published rules of a peer, DFModel (Ko et al. 2024, arXiv 2412.16432).

One side of the comparison tables. Nothing here is how meshwright itself prices a graph: collectives
are unlike in kind and cost the same for each byte, nothing has latency, and a ring takes half of
what it takes.
"""
