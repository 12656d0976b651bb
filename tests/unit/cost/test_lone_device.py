"""A system of one device has no network; it still plans."""

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.parts import TimePart
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_one
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.workload import Training


def test_training_on_one_device_is_that_of_one_among_eight():
    work = Training(
        global_batch_size=8, sequence_length=1024, optimizer=load_optimizer("megatron-adam")
    )
    constants = load_calibration("hopper")
    prices = [
        price_one(
            Problem(load_model("gpt2"), load_system(system), work, constants),
            PlanOptions(sequence_parallel=False, zero_stage=0),
            make_strategy(micro_batch_size=8),
        )
        for system in ("1xH100", "8xH100")
    ]
    alone, among = (price.step.time.total_s[0] for price in prices)
    assert alone == among > 0


def test_a_lone_device_has_a_domain_of_itself():
    lone, host = load_system("1xH100"), load_system("8xH100")
    assert (lone.domain_size, host.domain_size) == (1, 8)
    assert lone.link_energy_j_per_byte is None


def test_no_axis_communicates_on_a_lone_device():
    problem = Problem(
        load_model("gpt2"),
        load_system("1xH100"),
        Training(global_batch_size=1, sequence_length=128, optimizer=load_optimizer("temp-12")),
        load_calibration("hopper"),
    )
    price = price_one(
        problem, PlanOptions(sequence_parallel=False, zero_stage=0), make_strategy()
    ).pipeline
    communication = (TimePart.TP_COMM, TimePart.PP_COMM, TimePart.CP_COMM)
    assert all(price.time[part][0] == 0.0 for part in communication)
    assert price.time[TimePart.COMPUTE][0] > 0.0
