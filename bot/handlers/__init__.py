"""The effects of requests on the rows: one module for each chat command, one for requests to the agent."""
