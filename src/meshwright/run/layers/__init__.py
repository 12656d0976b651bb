"""The layers of a sharded transformer, written by hand: what each computes and what it sends."""
