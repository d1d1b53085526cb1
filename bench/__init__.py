"""Benchmarks on this machine, each beside a known program: `python -m bench`."""
