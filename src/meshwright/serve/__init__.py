"""Serving requests: prefill and decode; price, search, answer."""
