"""The sandbox around agents and git: what they see, and how much they may use."""
