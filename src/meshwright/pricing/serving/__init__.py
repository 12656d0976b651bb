"""The price of serving: prefill and decode, for one strategy or a column of them."""
