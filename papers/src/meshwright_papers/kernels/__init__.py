"""Curves of single kernels, fitted to published times: no price of the product reads them.

A few physical numbers for each chip and variant turn a shape into seconds. ``meshwright validate``
and ``meshwright calibrate`` with ``--kernels`` find :mod:`meshwright_papers.kernels.verbs` by the
entry point group ``meshwright.kernels``.
"""
