"""What a plan costs: time, memory, energy, money; numbers or columns alike."""
