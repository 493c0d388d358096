"""pearl_sim: simulate, replay and measure parallel speculative decoding (PEARL) and its relatives."""

__version__ = "0.1.0"
