"""`python -m bot` is `threadtree`."""

from bot.cli.main import main

main()
