"""The mesh and the groups that a script builds with PyTorch, as rank 0 of a world that is not."""

from pathlib import Path

import torch.distributed as dist
from answering import answer_all
from torch.testing._internal.distributed.fake_pg import FakeStore


def read(case):
    """Run the script but its start, then build its groups."""
    script = {"__name__": "script"}
    exec(compile(Path(case["script"]).read_text("utf-8"), "device_mesh.py", "exec"), script)
    script["DEVICE"] = "cpu"
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=script["NUM_DEVICES"])
    try:
        groups = script["build_groups"](script["build_mesh"]())
        if "build_expert_groups" in script:
            groups |= script["build_expert_groups"]()
        return {name: group.size() for name, group in groups.items()}
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    answer_all(read)
