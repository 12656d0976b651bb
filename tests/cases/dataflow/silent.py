"""Modules that fail without a word."""

import sys

import torch
from torch import nn


class Asserts(nn.Module):
    def forward(self, x):
        assert x.shape[0] == 3
        return x * 2


class Raises(nn.Module):
    def forward(self, x):
        raise ArithmeticError


def asserts():
    return Asserts(), torch.zeros(2, 4)


def raises():
    return Raises(), torch.zeros(2, 4)


def ends():
    sys.exit(3)


def fails():
    raise ValueError
