"""What fits on the chip: layers in SRAM, fused partitions."""
