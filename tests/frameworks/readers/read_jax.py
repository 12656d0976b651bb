"""The training step of a program, traced by JAX over a mesh without devices."""

import math
from pathlib import Path

import jax
from answering import answer_all
from jax.sharding import AbstractMesh, AxisType, NamedSharding


def read(case):
    """Run the program but its start; trace one step with the shardings that it pins."""
    program = {"__name__": "program"}
    path = Path(case["folder"]) / "jax_train.py"
    exec(compile(path.read_text("utf-8"), path.name, "exec"), program)
    axes = program["AXES"]
    assert math.prod(axes.values()) == case["num_devices"]
    types = (AxisType.Auto,) * len(axes)
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types)
    program["MESH"] = mesh
    state = jax.eval_shape(program["start"], jax.random.key(0))
    tokens = jax.ShapeDtypeStruct(program["batch_shape"](), "int32")
    after, loss = jax.eval_shape(program["train_step"], state, tokens, 1e-3)
    assert loss.shape == ()
    assert jax.tree.map(lambda one: one.shape, after) == jax.tree.map(lambda one: one.shape, state)
    held = {
        part: sum(
            math.prod(NamedSharding(mesh, specs[name]).shard_shape(weight.shape))
            for name, weight in state[part].items()
        )
        for part, specs in program["state_specs"]().items()
        if part != "step"
    }
    micro_batches, sequences, length = tokens.shape
    return {
        "axes": axes,
        "num_params": sum(math.prod(one.shape) for one in state["weights"].values()),
        "splits_state_alone": held["first"] < held["weights"],
        "num_micro_batches": micro_batches,
        "global_batch_size": micro_batches * sequences,
        "sequence_length": length - 1,
    }


if __name__ == "__main__":
    answer_all(read)
