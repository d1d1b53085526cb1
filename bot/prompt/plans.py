"""What an agent is told of plans. Pure."""

ONLY_A_PLAN = """\
# Only a plan is wanted

Change no file this time: the worktree is read-only for you, and nothing is committed. Look at what you need. Then \
answer with a plan that a person can approve: what you would change, in which files, in which order, and how it would \
be tested; and what is still open. Your final message is the whole plan, because it is carried out from its words \
alone. It ends without a line for the commit."""


def carry_out(plan: str) -> str:
    """Return the request that carries out a plan as it was shown."""
    return (
        "Carry out this plan. It was shown on the thread and approved as it is: do all that it says and nothing "
        f"beyond it. Say in your answer where it could not be followed.\n\n{plan}"
    )
