"""GPU kernels for fake tensors of the CPU, where both save different tensors.

A build of PyTorch without CUDA has fake tensors of the CPU alone, where RMSNorm is several
operators that save FP32 copies of their input. On a GPU it is one kernel that saves its input and
one number per row. The shape of flash attention there is that of the queries, though values may
be narrower (multi-head latent attention).

Source: PyTorch 2.13, ``aten/src/ATen/native/layer_norm.cpp`` and ``native/cuda``;
``torch/_meta_registrations.py`` (``_scaled_dot_product_flash_attention_for_cpu``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict

aten = torch.ops.aten


def _norm(x: Any, shape: Any, weight: Any, epsilon: Any) -> Any:
    rows = [*x.shape[: -len(shape)], *[1] * len(shape)]
    return torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)


def _norm_backward(gradient: Any, x: Any, shape: Any, rows: Any, weight: Any, mask: Any) -> Any:
    return (
        torch.empty_like(x) if mask[0] else None,
        torch.empty_like(weight) if mask[1] else None,
    )


def _flash(query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
    batch, heads, length, _ = query.shape
    made = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    return made, query.new_empty(batch, length, heads, dtype=torch.float32).transpose(1, 2)


def _pinned(x: Any, device: Any = None) -> Any:
    """Return memory of the host itself: FSDP pins the shards of all layers in its first pass."""
    return x


FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default


def flash_attention(query: Any, key: Any, value: Any) -> Any:
    """Return causal attention by the flash kernel, whichever kernel PyTorch would choose.

    Heads lie before tokens. Fewer heads of keys and values serve equally many of queries each.
    """
    return FLASH(query, key, value, 0.0, True)[0]


_KERNELS = {"_fused_rms_norm": _norm, "_fused_rms_norm_backward": _norm_backward}
_ON_FAKES = {FLASH: _flash, aten._pin_memory.default: _pinned}


@contextmanager
def gpu_kernels() -> Iterator[None]:
    """Run the kernels of a GPU on fake tensors of the CPU; they compute no values."""
    library = torch.library.Library("aten", "IMPL")
    operators = {getattr(aten, name).default: kernel for name, kernel in _KERNELS.items()}
    try:
        for name, kernel in _KERNELS.items():
            library.impl(name, kernel, "CPU")
        for operator, kernel in (operators | _ON_FAKES).items():
            op_implementations_dict[operator] = _fake(kernel)
        yield
    finally:
        for operator in (*operators, *_ON_FAKES):
            op_implementations_dict.pop(operator, None)
        library._destroy()


def _fake(kernel: Any) -> Any:
    def run(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(*args, **kwargs)

    return run
