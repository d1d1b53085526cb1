"""The models of the agents: a server that speaks their vendors' APIs and does what the lines of a prompt say."""
