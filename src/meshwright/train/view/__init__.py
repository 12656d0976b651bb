"""Views of the answers about training."""

from meshwright.train.view import comparison, others, plan, step

__all__ = ["comparison", "others", "plan", "step"]
