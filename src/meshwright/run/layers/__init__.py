"""The layers of a sharded transformer, written by hand: what each computes and what it sends.

Read them in this order; each group needs only those before it.

1. Tensor parallelism (TP): ``column``, ``row``, then their helpers ``products`` (the three matrix
   products of a linear layer) and ``tokens`` (the tokens that sequence parallelism splits).
2. Everything else on the same ranks: ``norm``, ``elementwise``, ``embedding``, ``loss``.
3. Exchanges: ``ulysses`` (heads for tokens), ``experts`` (tokens visit their experts).
4. Tensor streams: ``streams`` (Algorithm 1 of TEMP), ``streamed_weights`` in the place of
   ``products``, ``streamed_tokens`` in the place of ``tokens``, ``attention`` with ``pieces`` and
   ``online_softmax`` (ring attention). ``relay`` posts the sends of a round, ``cuts`` splits a dim
   into items.

Collectives are methods of :class:`~meshwright.run.mesh.Axis`, the group of ranks along an axis of
the mesh: ``gather`` (all-gather), ``scatter_sum`` (reduce-scatter), ``sum`` and ``largest``
(all-reduce), ``exchange`` (all-to-all).

=============  ====================================================================================
TP, SP         tensor parallelism, and sequence parallelism on the same axis ``tp``
TSPP           tensor stream partition parallelism: weights and inputs are both split over axis
               ``tatp``, and one of the two travels while the other stays
TATP           topology-aware tensor-stream partitioning: TSPP whose sends go to neighbours alone
TEMP           the framework that defines both (arXiv 2512.14256)
sub-tensor     the share of one member of a stream
part           a piece of a sub-tensor; parts of one sub-tensor take different directions
item           anything a stream sends: a sub-tensor, or one of its parts
=============  ====================================================================================

Sizes. Docstrings have b sequences of s tokens, width h, and N ranks; examples are of b = 1, s = 8,
h = 8, N = 4. E is the number of elements of the whole tensor: after a gather, before a reduction.
Each rank sends E (N - 1) / N in an all-gather or a reduce-scatter, and twice that in an all-reduce.
For an all-to-all, E is the tensor of one rank, of which E (N - 1) / N leave it. Recorders count E.
"""
