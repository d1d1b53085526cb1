"""Random kills, suspensions and cuts while comments stream in; afterwards every promise is checked from three sides.

`python -m tests.chaos --kills 1000 --seed 7 --nodes 2`, or `make chaos ARGS=…`. `make test` plays one short round.
"""
