"""One turn: claim, confirm, checkout, prompt, agent, push, result."""
