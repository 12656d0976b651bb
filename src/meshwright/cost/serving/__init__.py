"""Serving: one forward pass of prefill or decode on one device, and what it keeps in memory."""
