"""What people read about plans and their approval."""

PLAN_SUMMARY = "asks for a plan alone: `/plan` and the request; no file is changed"
APPROVE_SUMMARY = "has the last plan carried out as it was shown"

NOTHING_TO_PLAN = "There is no request to plan. Write `/plan` and then what is wanted, in the same comment."
NOTHING_TO_APPROVE = "There is no plan here to approve. `/plan` with a request asks for one."
PLAN_TOO_LONG = "The comments do not show the end of the plan, so nobody can approve it. Ask for a shorter one."
PLAN_NOT_THERE = "The plan is not there yet. Read it first; then write `/approve`."

PLANNED = (
    "This is a plan: nothing was committed. `/approve` has it carried out as it stands here. To change it, mention the "
    'bot with what to do differently, such as "go ahead, but …", or ask for another one with `/plan`.'
)
PLANNED_FOR_OUTSIDER = (
    "This is a plan: nothing was committed. `/approve` by somebody with write access has it carried out exactly as it "
    "stands here, whatever the thread says by then."
)
REQUIRED_FOR_ALL = "In this repository each request begins with a plan (`require_plan`)."
REQUIRED_FOR_OUTSIDERS = (
    "Words of this request are of somebody without write access. In this repository such a request begins with a plan "
    "(`require_plan`)."
)
CHANGED_ALL_THE_SAME = (
    "The agent changed files while it should only plan: it runs without a sandbox. Nothing of that was committed. It "
    "is left in the worktree, and the next request that changes files would push it; `/worktree reset` takes it back."
)


def not_open(plan: int, followed_by: int, *, approved: bool) -> str:
    """Answer the approval of the plan of a turn that another turn carries out already."""
    if approved:
        return f"The plan of turn {plan} was approved already: turn {followed_by} carries it out."
    return (
        f"The plan of turn {plan} is not open any more: the request of turn {followed_by} came after it. "
        "`/plan` with a request asks for another one."
    )


def waits_for_approval(turn: int) -> str:
    """Tell of a plan that waits for its approval; a line of `/status`."""
    return f"The plan of turn {turn} waits for `/approve`"
