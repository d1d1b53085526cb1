"""How fast it is, measured on this machine next to what others use. `python -m bench`."""
