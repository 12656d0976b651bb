"""The learned cost model: the correction of the closed form to a simulation, at little cost.

It is trained on simulated steps of drawn systems, models and plans; see
``docs/explanation/surrogate.md``.
"""
