"""Drivers carry out the rounds that rules.py plans; each emits the same timeline."""
