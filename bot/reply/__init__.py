"""The last step: the outbox makes GitHub show what the rows say."""
