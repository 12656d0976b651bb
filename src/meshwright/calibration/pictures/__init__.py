"""The validation as pictures: SVG, nothing from outside, equal for equal input."""
