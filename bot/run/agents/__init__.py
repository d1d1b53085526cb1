"""How the bot talks to an agent: one interface (`driver`), one module per protocol (`acp`)."""
