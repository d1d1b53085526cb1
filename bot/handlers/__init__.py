"""What a request changes in the rows: one module for each chat command, one for requests to the agent."""
