"""The processes of the bot: their object graph, web and worker, health and metrics."""
