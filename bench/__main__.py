"""`python -m bench PART`: figures of one part (see `--help`), each beside something known in the same run."""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

import structlog
import uvloop

from bench import claim, decide, fair, flood, lists, plans, receive, removal, sweep, turn, wait, worktree
from bench.receive import LONG, SHORT


def main() -> int:
    """Return 1 if a limit was exceeded, a request failed, or a delivery was not committed."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parts = parser.add_subparsers(dest="part", required=True)
    acknowledgement = parts.add_parser("receive", help="how fast webhooks are acknowledged")
    acknowledgement.add_argument("--short", action="store_true", help="one short repetition")
    acknowledgement.add_argument(
        "--data-dir",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="for Postgres' data; on tmpfs, such as /dev/shm, a commit waits for no disk",
    )
    acknowledgement.add_argument("command", nargs="*", metavar="COMMAND", help="what to start instead of `threadtree`")
    gone = parts.add_parser("removal", help="how long a rescue and a removal take")
    gone.add_argument("--files", type=int, nargs="+", default=[1_000, 20_000, 100_000])
    gone.add_argument("--runs", type=int, default=3)
    gone.add_argument("--registered", type=int, default=10_000, help="other worktrees of the clone, in a last run")
    swept = parts.add_parser("sweep", help="what a sweep over many worktrees opens")
    swept.add_argument("--worktrees", type=int, default=10_000)
    swept.add_argument("--due", type=int, default=100)
    flooded = parts.add_parser("flood", help="how fast the process answers while agents and strangers flood it")
    flooded.add_argument("--seconds", type=int, default=10, help="of each flood")
    turned = parts.add_parser("turn", help="what a turn costs beside its agent and GitHub")
    turned.add_argument("--runs", type=int, default=5)
    turned.add_argument("--short", action="store_true", help="the small repository only")
    names = list(dict.fromkeys(one.name for one in turn.SETTINGS))
    turned.add_argument("--setting", nargs="+", choices=names, default=names, help="these repositories only")
    claimed = parts.add_parser("claim", help="how long a claim takes while thousands of turns wait")
    claimed.add_argument("--runs", type=int, default=30)
    shared = parts.add_parser("fair", help="what a flood of one person's comments costs others")
    shared.add_argument("--comments", type=int, default=10_000)
    shared.add_argument("--seconds", type=float, default=60)
    planned = parts.add_parser("plans", help="how long each statement takes on a database with a million rows")
    planned.add_argument("--rows", type=int, default=plans.MANY)
    planned.add_argument("--runs", type=int, default=5)
    parts.add_parser("decide", help="how long 500 mentions on 100 threads take")
    listed = parts.add_parser("lists", help="how long a list and a dry prune of many worktrees take")
    listed.add_argument("--worktrees", type=int, default=1_000)
    listed.add_argument("--sandbox", choices=("bwrap", "off"), default="bwrap")
    made = parts.add_parser("worktree", help="how long a new worktree takes")
    made.add_argument("--files", type=int, nargs="+", default=[20_000, 100_000])
    made.add_argument("--runs", type=int, default=3)
    waited = parts.add_parser("wait", help="what a person waits for, on threads and with large repositories")
    waited.add_argument(
        "only", nargs="*", choices=[*wait.PARTS, []], metavar="PART", help=f"of {', '.join(wait.PARTS)}"
    )
    waited.add_argument("--short", action="store_true", help="a smaller repository, once")
    waited.add_argument("--list", action="store_true", help="also the requests of a turn in order")
    waited.add_argument("--json", type=Path, metavar="FILE", help="also write everything there")
    waited.add_argument("--directory", type=Path, help="for everything; how fast it is matters")
    known = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    match known.part:  # Each server runs on the same event loop as the product.
        case "receive":
            return _receive(known)
        case "removal":
            return 0 if removal.report(asyncio.run(removal.measure(known.files, known.runs, known.registered))) else 1
        case "worktree":
            return 0 if worktree.report(asyncio.run(worktree.measure(known.files, known.runs))) else 1
        case "flood":
            return 0 if asyncio.run(_flood(known.seconds)) else 1
        case "claim":
            return 0 if claim.report(asyncio.run(claim.measure(known.runs))) else 1
        case "fair":
            return 0 if fair.report(asyncio.run(fair.measure(known.comments, known.seconds))) else 1
        case "plans":
            return 0 if plans.report(asyncio.run(plans.measure(known.rows, known.runs))) else 1
        case "decide":
            return 0 if decide.report(asyncio.run(decide.measure())) else 1
        case "lists":
            return 0 if lists.report(asyncio.run(lists.measure(known.worktrees, known.sandbox))) else 1
        case "wait":
            size = wait.SHORT if known.short else wait.LONG
            table = asyncio.run(wait.measure(size, known.only or list(wait.PARTS), known.directory, known.json))
            return 0 if wait.report(table, listed=known.list) else 1
        case "turn":
            chosen = [one for one in turn.SETTINGS if one.name in known.setting]
            settings = turn.SHORT if known.short else chosen
            return 0 if turn.report(asyncio.run(turn.measure(settings, known.runs))) else 1
        case _:
            return 0 if sweep.report(asyncio.run(sweep.measure(known.worktrees, known.due))) else 1


def _receive(known: argparse.Namespace) -> int:
    command = known.command or [str(Path(sys.executable).with_name("threadtree"))]
    print("signed 18 KB issue_comment deliveries, of which one in ten mentions the bot", flush=True)
    print(f"Postgres' data are in {known.data_dir}", flush=True)
    length = SHORT if known.short else LONG
    return 0 if receive.report(uvloop.run(receive.measure(command, length, known.data_dir))) else 1


async def _flood(seconds: int) -> bool:
    print(flood.heading(), flush=True)
    figures = []
    async for figure in flood.measure(seconds):
        figures.append(figure)
        print(flood.line(figure), flush=True)
    return flood.report(figures)


if __name__ == "__main__":
    raise SystemExit(main())
