"""What operators see and do: the HTTP API, and the pages made of it."""
