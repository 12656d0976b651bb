"""Operators of frameworks as kernels, by their name in PyTorch (ATen).

Views are no kernels, and operators without arithmetic are moves. Other formats are read by mapping
their operators to those of PyTorch, with the names of its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.graphs.rules import gradients, moves, products, recurrent, whole
from meshwright.catalog.graphs.rules.calls import (
    Made,
    OpCall,
    Rule,
    each_element,
    first_of,
    rows,
)
from meshwright.catalog.graphs.tracing import GraphBuilder, UnevenError


class OperatorError(SpecError):
    """An operator whose arguments do not fit its rule here."""


def made_by(
    to: GraphBuilder, operator: str, call: OpCall, *, node: str, written: str, origin: str
) -> Made:
    """Return the outputs of an operator.

    Parameters
    ----------
    operator
        Its name here.
    node, written
        Its name in the program, and the operator as that writes it; for messages.

    Raises
    ------
    OperatorError
        Where its axes do not fit each other, or its arguments are not those of the operator.
    """
    to.call_word_bytes = call.word_bytes
    try:
        if not call.values:  # made from numbers alone
            return [moves.constant(to, replace(call, shapes=[shape])) for shape in call.shapes]
        return RULES[operator](to, call)
    except UnevenError as error:
        reason = str(error)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        reason = f"its arguments do not fit ({type(error).__name__})"
    raise OperatorError(Fault(node, f"{written}: {reason}"), origin=origin)


_VIEWS: Mapping[str, Rule] = {
    "alias clone contiguous detach to type_as _to_copy _to_cpu": lambda to, call: call.first,
    "lift lift_fresh lift_fresh_copy _assert_tensor_metadata": lambda to, call: call.first,
    "pin_memory  positive conj_physical": lambda to, call: call.first,
    "view reshape _unsafe_view view_as reshape_as _reshape_alias": moves.reshape,
    "flatten unflatten squeeze unsqueeze ravel atleast_1d atleast_2d atleast_3d": moves.reshape,
    "permute t numpy_T": moves.permute,
    "transpose swapaxes swapdims adjoint mT mH": moves.transpose,
    "movedim moveaxis": moves.moved_axes,
    "expand expand_as broadcast_to repeat tile": moves.repeated,
    "repeat_interleave": partial(moves.repeated, inside=True),
    "real imag view_as_real conj _conj resolve_conj resolve_neg _conj_physical": moves.complex_view,
    "slice narrow split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk": moves.part,
    "unbind": moves.unbind,
    "select": lambda to, call: rows(to, call.name, call["self"], call["dim"], None),
    "diagonal linalg_diagonal as_strided unfold view_as_complex": moves.rearranged,
}
"""Operators that show a tensor; each also as a copy, ``expand_copy``."""
_MOVES: Mapping[str, Rule] = {
    # what is copied over a tensor, which is not read
    "copy": lambda to, call: call["src"].expanded(call.shape, to.num_names),
    "diff pad constant_pad_nd unsafe_split_with_sizes hsplit vsplit dsplit": moves.part,
    "reflection_pad1d reflection_pad2d reflection_pad3d _pad_circular": moves.part,
    "replication_pad1d replication_pad2d replication_pad3d nonzero_static": moves.part,
    "cat concat concatenate": moves.cat,
    "stack": moves.stack,
    "hstack vstack dstack column_stack row_stack": moves.joined,
    "slice_scatter scatter masked_scatter index_copy index_fill": moves.overwritten,
    "diagonal_scatter as_strided_scatter fill_diagonal": moves.overwritten,
    "select_scatter": moves.selected_over,
    "scatter_add scatter_reduce index_add index_reduce": moves.summed_up,
    "im2col col2im histc bincount one_hot nonzero masked_select": moves.rearranged,
    "take diag diagflat diag_embed unique_consecutive rot90": moves.rearranged,
    "pixel_shuffle": moves.pixel_shuffle,
    "pixel_unshuffle channel_shuffle native_channel_shuffle": moves.rearranged,
    "embedding": moves.embedding,
    "embedding_bag _embedding_bag _embedding_bag_forward_only": first_of(moves.embedding_bag),
    "index_select": moves.rows_at,
    "gather take_along_dim": moves.gather,
    "gather_tuples": moves.gather_tuples,
    "scatter_tuples": moves.scatter_tuples,
    "placed": moves.placed,
    "index _unsafe_index": moves.index,
    "index_put _unsafe_index_put": moves.index_put,
    "meshgrid broadcast_tensors": moves.broadcast,
    "arange full ones zeros empty full_like ones_like zeros_like fill empty_like new_full "
    "new_ones new_zeros new_empty scalar_tensor zero rand rand_like randn randn_like bernoulli "
    "randint randint_like linspace logspace eye empty_strided new_empty_strided empty_permuted "
    "randperm tril_indices triu_indices hann_window hamming_window blackman_window range normal "
    "uniform exponential": moves.constant,
}
_ELEMENTWISE: Mapping[str, Rule] = {
    # as PyTorch tags them pointwise
    "sub rsub mul div neg pow sqrt rsqrt exp log log1p sin cos tanh sigmoid relu relu6 gelu "
    "silu mish elu leaky_relu hardtanh hardswish hardsigmoid softplus erf abs reciprocal "
    "sign floor ceil round clamp clamp_min clamp_max maximum minimum where masked_fill "
    "eq ne lt le gt ge logical_and logical_or logical_not bitwise_not bitwise_and "
    "bitwise_or bitwise_xor __and__ __or__ __xor__ addcmul lerp square remainder fmod "
    "floor_divide tril triu isnan isinf expm1 log2 log10 atan2 hypot celu selu logsigmoid "
    "softsign complex polar angle sgn logical_xor threshold nan_to_num greater less "
    "greater_equal less_equal not_equal multiply divide true_divide subtract absolute negative "
    "clip exp2 sinh cosh tan asin acos atan logit logaddexp trunc frac addcdiv float_power "
    "hardshrink softshrink acosh asinh atanh arccos arccosh arcsin arcsinh arctan arctan2 arctanh "
    "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ copysign deg2rad rad2deg erfc "
    "erfinv fmax fmin frexp gcd lcm ldexp heaviside i0 igamma igammac isfinite isneginf isposinf "
    "isclose lgamma digamma polygamma mvlgamma logaddexp2 nextafter rrelu signbit sinc xlogy fix "
    "special_expit special_erf special_erfc special_entr special_log1p special_xlog1py log_sigmoid "
    "special_i0e special_i1 special_i1e special_ndtr special_ndtri special_log_ndtr isin isreal "
    "bucketize searchsorted _add_relu "
    "gelu_backward silu_backward sigmoid_backward tanh_backward threshold_backward "
    "logit_backward hardtanh_backward leaky_relu_backward elu_backward hardswish_backward "
    "hardsigmoid_backward softplus_backward mish_backward native_dropout_backward": each_element,
    "log_sigmoid_forward": first_of(each_element),
    "prelu _prelu_kernel": whole.prelu,
    "add": whole.add,
    "dropout feature_dropout alpha_dropout feature_alpha_dropout": whole.dropout,
    "native_dropout": first_of(whole.dropout),
    "glu": moves.gated,
    "quantize_per_tensor dequantize_per_tensor quantize_per_channel dequantize_per_channel "
    "quantize_per_token dequantize_per_token quantize_per_channel_group quantize_affine "
    "dequantize_per_channel_group dequantize_affine dequantize fake_quantize_per_tensor_affine "
    "fake_quantize_per_channel_affine": products.scaled,
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d": partial(whole.upsample, points=1),
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d _upsample_bilinear2d_aa": partial(
        whole.upsample, points=2
    ),
    "upsample_bicubic2d _upsample_bicubic2d_aa": partial(whole.upsample, points=4),
    "resize": whole.upsample,
    "grid_sampler grid_sampler_2d grid_sampler_3d": whole.sampled,
}
_PRODUCTS: Mapping[str, Rule] = {
    "linear _weight_int8pack_mm": products.linear,
    "matmul mm bmm mv dot vdot linalg_matmul _int_mm": products.matmul_of,
    "addmm baddbmm addmv _addmm_activation": products.addmm,
    "outer ger linalg_multi_dot chain_matmul": products.chain,
    "bilinear": products.bilinear,
    "einsum": products.einsum,
    "_scaled_mm": products.scaled_matmul,
    "_weight_int4pack_mm _weight_int4pack_mm_for_cpu": products.packed,
    "scaled_dot_product_attention": products.attention_of,
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_attention_math flex_attention": first_of(products.attention_of),
    "conv1d conv2d conv3d convolution _convolution conv_depthwise3d": products.convolution,
    "conv_transpose1d conv_transpose2d conv_transpose3d": products.transposed_convolution,
    "grouped_mm_fallback _grouped_mm _scaled_grouped_mm": products.grouped,
    "cdist _cdist_forward _euclidean_dist": products.distances,
    "pdist _pdist_forward": products.own_distances,
    "lstm": partial(recurrent.recurrent, gates=4),
    "gru": partial(recurrent.recurrent, gates=3),
    "rnn_tanh rnn_relu": partial(recurrent.recurrent, gates=1),
    "lstm_sides": partial(recurrent.recurrent_sides, gates=4),
    "gru_sides": partial(recurrent.recurrent_sides, gates=3),
    "rnn_sides": partial(recurrent.recurrent_sides, gates=1),
    "lstm_cell": partial(recurrent.cell, gates=4),
    "gru_cell": partial(recurrent.cell, gates=3),
    "rnn_tanh_cell rnn_relu_cell": partial(recurrent.cell, gates=1),
}
_WHOLE_AXES: Mapping[str, Rule] = {
    "softmax log_softmax _softmax _log_softmax _safe_softmax cumsum cumprod flip roll fliplr "
    "flipud logcumsumexp normalize renorm fft_fftshift fft_ifftshift": whole.along_axes,
    "cummax cummin": first_of(whole.along_axes),
    "_softmax_backward_data _log_softmax_backward_data": gradients.of_softmax,
    "layer_norm rms_norm": whole.norm,
    "native_layer_norm _fused_rms_norm": first_of(whole.norm),
    "group_norm": whole.group_norm,
    "native_group_norm": first_of(whole.group_norm),
    "instance_norm": whole.instance_norm,
    "batch_norm": whole.batch_norm,
    "_weight_norm": whole.weight_norm,
    "_weight_norm_interface": first_of(whole.weight_norm),
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training _batch_norm_impl_index": first_of(whole.batch_norm),
    "sum mean nansum nanmean count_nonzero sum_to_size": partial(whole.reduce, needs_whole=False),
    "amax amin max min argmax argmin var std prod any all linalg_vector_norm logsumexp var_mean "
    "std_mean median nanmedian mode kthvalue norm frobenius_norm linalg_norm linalg_matrix_norm "
    "aminmax _choose_qparams_per_tensor choose_qparams choose_qparams_affine trace "
    "choose_qparams_per_token choose_qparams_per_token_asymmetric": partial(
        whole.reduce, needs_whole=True
    ),
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div poisson_nll_loss "
    "binary_cross_entropy_with_logits hinge_embedding_loss soft_margin_loss margin_ranking_loss "
    "cosine_similarity pairwise_distance triplet_margin_loss cosine_embedding_loss dist "
    "linalg_vecdot multilabel_margin_loss": whole.loss,
    "cross_entropy_loss": partial(whole.loss_of_classes, is_normalized=True),
    "nll_loss nll_loss_nd nll_loss2d multi_margin_loss": whole.loss_of_classes,
    "nll_loss_forward nll_loss2d_forward": first_of(whole.loss_of_classes),
    "transform_of_pairs": whole.transform_of_pairs,
    "fft_fft fft_ifft": partial(whole.transform, rank=1),
    "fft_fft2 fft_ifft2": partial(whole.transform, rank=2),
    "fft_fftn fft_ifftn _fft_c2c": whole.transform,
    "fft_rfft fft_irfft fft_hfft fft_ihfft": partial(whole.transform, rank=1, is_real=True),
    "fft_rfft2 fft_irfft2": partial(whole.transform, rank=2, is_real=True),
    "fft_rfftn fft_irfftn _fft_r2c _fft_c2r": partial(whole.transform, is_real=True),
    "sort topk argsort msort": whole.sort,
    # of n x n; Golub and Van Loan, Matrix Computations, 4th edition, ch. 3 to 5 and 8
    "linalg_cholesky linalg_cholesky_ex cholesky": partial(whole.factorised, flops=1 / 3),
    "linalg_lu linalg_lu_factor linalg_lu_factor_ex _linalg_det linalg_det "
    "_linalg_slogdet linalg_slogdet": partial(whole.factorised, flops=2 / 3),
    "linalg_inv linalg_inv_ex inverse": partial(whole.factorised, flops=2.0),
    "linalg_qr": partial(whole.factorised, flops=8 / 3),
    "_linalg_eigh linalg_eigh linalg_eigvalsh": partial(whole.factorised, flops=9.0),
    "_linalg_svd linalg_svd linalg_svdvals linalg_pinv": partial(whole.factorised, flops=21.0),
    "linalg_solve_triangular triangular_solve": partial(products.solved, flops=1.0),
    "linalg_solve _linalg_solve_ex": partial(products.solved, flops=2.0),
    "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d": first_of(whole.pooling),
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d "
    "_adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d": (
        whole.pooling
    ),
}
_GRADIENTS: Mapping[str, Rule] = {
    "convolution_backward": gradients.of_convolution,
    "embedding_dense_backward": gradients.of_embedding,
    "native_layer_norm_backward": gradients.of_norm,
    "native_group_norm_backward": partial(gradients.of_norm, is_grouped=True),
    "native_batch_norm_backward": partial(gradients.of_norm, is_grouped=True),
    "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward": gradients.of_pooling,
}
_KINDS = (_VIEWS, _MOVES, _ELEMENTWISE, _PRODUCTS, _WHOLE_AXES, _GRADIENTS)
RULES: Mapping[str, Rule] = {
    **{f"{name}_copy": rule for names, rule in _VIEWS.items() for name in names.split()},
    **{name: rule for kind in _KINDS for names, rule in kind.items() for name in names.split()},
}
"""Rules by the name of the operator without its overload; some are only in other formats."""
