"""The composition root: settings in, a running web process, worker or both. Nothing else builds the object graph."""
