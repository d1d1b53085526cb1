"""`threadtree demo`: the whole story on this machine, with every part real but GitHub and the agent."""
