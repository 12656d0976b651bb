"""An independent roofline of a streamed layer: link, main memory, SRAM and arithmetic."""

import pytest

from meshwright.catalog.systems import load_system
from meshwright_papers.studies.temp.sweet_spot import layer_curve

DIES = load_system("wafer-4x8")


def roofs_s(tokens, hidden, members):
    """Return the least seconds of link, main memory, SRAM and arithmetic, each on its own.

    A die receives N - 1 of N sub-tensors of the smaller operand; reads its inputs and its weight
    and writes its output once; and each byte passes its SRAM once.
    """
    word, level = 2.0, DIES.levels[0]
    travels = word * min(tokens, hidden) * hidden / members
    own = word * (tokens * hidden + hidden * hidden + tokens * hidden) / members
    return {
        "link": (members - 1) * travels / level.bandwidth_bytes_per_s,
        "memory": own / DIES.chip.main_memory.bandwidth_bytes_per_s,
        "sram": (own + (members - 1) * travels) / DIES.chip.memories[0].bandwidth_bytes_per_s,
        "arithmetic": 2.0 * tokens * hidden**2 / (members * 1800e12),
    }


@pytest.mark.parametrize("tokens", [2048.0, 8192.0])
def test_a_streamed_layer_is_above_its_roofs(tokens):
    """An independent roofline of 12288 x 12288 over N dies: 43 us of arithmetic at N = 8."""
    found = tokens / layer_curve(tokens, with_hbm=True).tokens_per_s
    for members, seconds in enumerate(found, start=1):
        assert seconds >= max(roofs_s(tokens, 12288.0, members).values())
    if tokens == 2048.0:
        roofs = roofs_s(tokens, 12288.0, 8)
        assert roofs["arithmetic"] == pytest.approx(42.9e-6, rel=2e-3)
        assert max(roofs, key=roofs.get) == "memory"
        assert roofs["memory"] == pytest.approx(50.3e-6, rel=2e-3)
        assert found[7] < 1.25 * roofs["memory"]
