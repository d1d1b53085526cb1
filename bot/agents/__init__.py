"""AI coding agents: one interface (`driver`), modules for each protocol, a table of the known products (`presets`)."""
