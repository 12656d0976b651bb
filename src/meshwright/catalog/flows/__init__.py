"""Reads flow files: links, and flows that share them, of one or several scenarios in JSON."""

from meshwright.catalog.flows.scenarios import SCHEMA, FlowFile, FlowScenario, read_flow_file

__all__ = ["SCHEMA", "FlowFile", "FlowScenario", "read_flow_file"]
