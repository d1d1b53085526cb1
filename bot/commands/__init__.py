"""The commands of `threadtree`, a module for each group; `bot.cli.main` puts them together."""
