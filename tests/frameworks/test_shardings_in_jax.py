"""JAX reads the file of shardings: its mesh, and the part of every tensor on every device."""

import json
import os
import subprocess
import sys

import pytest

import meshwright as mw
from meshwright.frameworks.registry import rendered

PROGRAM = """
import json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

data, devices = json.load(sys.stdin), np.array(jax.devices())
found = []
for part in data["layers"]:
    for group in part["groups"]:
        stated = data["meshes"][group["mesh"]]
        mesh = Mesh(devices[np.array(stated["devices"])], stated["axes"])
        for operator in group["operators"]:
            for kind in ("inputs", "weights", "outputs"):
                for name, tensor in operator[kind].items():
                    shape = tuple(dim["size"] for dim in tensor["dims"])
                    spec = PartitionSpec(*(tuple(dim["axes"]) for dim in tensor["dims"]))
                    index = NamedSharding(mesh, spec).devices_indices_map(shape)
                    parts = {
                        device.id: [list(one.indices(size)[:2]) for one, size in zip(cut, shape)]
                        for device, cut in index.items()
                    }
                    found.append([group["mesh"], operator["name"], kind, name, parts])
json.dump(found, sys.stdout)
"""


def expected(mesh, tensor):
    """Return the part of a tensor on each device, axis by axis, outermost first."""
    import numpy as np

    devices = np.array(mesh["devices"])
    parts = {}
    for place, device in np.ndenumerate(devices):
        at = dict(zip(mesh["axes"], zip(place, devices.shape, strict=True), strict=True))
        bounds = []
        for dim in tensor["dims"]:
            first, length = 0, dim["size"]
            for axis in dim["axes"]:
                number, degree = at[axis]
                length //= degree
                first += number * length
            bounds.append([first, first + length])
        parts[str(device)] = bounds
    return parts


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (
            {"on": "wafer-2x4", "seq": 2048, "global_batch": 16},
            {"per_operator": True, "pp": 1, "cp": 1, "mbs": 1, "recompute": "none", "zero": 1},
        ),
        ({"on": "16xH100", "seq": 2048, "global_batch": 64}, {"tp": 2, "pp": 2, "cp": 2}),
    ],
)
def test_jax_cuts_every_tensor_as_stated(asked, chosen):
    data = json.loads(
        rendered(mw.plan("gpt3-6.7b", **asked, **chosen), "shardings")["shardings.json"]
    )
    flags = "--xla_force_host_platform_device_count=16"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(data), env=env, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    named = {
        (group["mesh"], operator["name"], kind, name): tensor
        for part in data["layers"]
        for group in part["groups"]
        for operator in group["operators"]
        for kind in ("inputs", "weights", "outputs")
        for name, tensor in operator[kind].items()
    }
    read = json.loads(done.stdout)
    assert {tuple(one[:4]) for one in read} == set(named)
    for *key, parts in read:
        assert parts == expected(data["meshes"][key[0]], named[tuple(key)]), key
