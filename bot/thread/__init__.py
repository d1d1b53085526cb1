"""A thread on GitHub: the texts that people read there, what makes foreign text safe, and the outbox."""
