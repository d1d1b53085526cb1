"""What a request changes in the rows: one module for each chat command, one for a request to the agent."""
