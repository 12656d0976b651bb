"""Every medium under one roof: pages of answers on a terminal, as HTML and in a notebook."""

from meshwright.view.html import card_of, html_of, write_page
from meshwright.view.notebook import plot_of
from meshwright.view.registry import page_of
from meshwright.view.terminal import draw, lead_of, text_of

__all__ = [
    "card_of", "draw", "html_of", "lead_of", "page_of", "plot_of", "text_of", "write_page",
]  # fmt: skip
