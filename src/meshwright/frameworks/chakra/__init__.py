"""Chakra execution traces of a plan: one program for each rank, in the wire format of protobuf."""
