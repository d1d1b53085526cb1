"""`python -m bot` is `threadtree`."""

from bot.cli import main

main()
