"""AI coding agents: one interface (`driver`), a module for each protocol, what differs between products (`presets`)."""
