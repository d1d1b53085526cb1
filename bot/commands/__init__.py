"""The commands of `threadtree`, a module for each group; `bot.cli` puts them together."""
