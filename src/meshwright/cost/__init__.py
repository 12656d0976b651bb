"""The price of a plan: time, memory, energy, money; numbers or columns alike."""
