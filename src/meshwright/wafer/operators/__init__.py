"""A strategy for each group of operators: options, prices, exact choices."""
