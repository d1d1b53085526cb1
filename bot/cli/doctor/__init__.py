"""`threadtree doctor`: checks everything that a set-up can get wrong."""
