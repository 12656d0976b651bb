"""Pipeline orders: closed form of bubble and in-flight, and the order itself; no network."""
