"""The learned cost model: what a simulation adds to the closed form, at the cost of a look-up.

It is trained on simulated steps of drawn systems, models and plans; see
``docs/explanation/surrogate.md``.
"""
