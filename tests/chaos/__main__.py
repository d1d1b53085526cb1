"""`python -m tests.chaos --kills 1000 --seed 7 --nodes 2`: rounds until there were so many kills; 1 if one failed."""

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import structlog

from tests.chaos.checks import KINDS
from tests.chaos.round import KILLS, Outcome, Plan, play, postgres
from tests.support.postgres import remember_types

KILLS_A_ROUND = 40


def main() -> int:
    """Return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=100, help="how many processes are killed in all (100); 0: only the table"
    )
    parser.add_argument("--seed", type=int, default=1, help="everything random follows from it (1)")
    parser.add_argument("--nodes", type=int, default=1, help="nodes with a DATA_DIR each on one Postgres (1)")
    parser.add_argument("--a-round", type=int, default=KILLS_A_ROUND, help=f"kills in each round ({KILLS_A_ROUND})")
    parser.add_argument("--round", type=int, help="play only the round of this number")
    parser.add_argument(
        "--journal",
        type=Path,
        default=Path("chaos.journal"),
        help="gets a line for each round; the table is of all its lines (chaos.journal)",
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on after the rounds in this journal")
    parser.add_argument("--keep-going", action="store_true", help="go on after a round that failed")
    known = parser.parse_args()
    journal: Path = known.resume or known.journal
    done = _rounds(journal) if known.resume else []
    mine = [one for one in done if (one["plan"]["seed"], one["plan"]["nodes"]) == (known.seed, known.nodes)]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    # The simulated GitHub has requests whose client was killed.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if known.kills:
        with suppress(KeyboardInterrupt):
            asyncio.run(_run(known, journal, mine))
    return _report(_rounds(journal))


async def _run(known: argparse.Namespace, journal: Path, done: list[dict[str, Any]]) -> None:
    remember_types()
    kills = sum(_kills(one) for one in done)
    number = known.round or 1 + max((one["plan"]["number"] for one in done), default=0)
    top = Path(tempfile.mkdtemp(prefix="chaos-"))
    top.chmod(0o755)  # Postgres of its own account must pass
    async with postgres(top / "postgres") as server:
        while kills < known.kills:
            wanted = min(known.a_round, known.kills - kills) if known.round is None else known.a_round
            plan = Plan(known.seed, number, wanted, known.nodes)
            outcome = await play(top / f"round-{number}", server, plan, _say)
            _say(_line(outcome))
            with journal.open("ab") as file:
                file.write(orjson.dumps(asdict(outcome)) + b"\n")
            kills += outcome.kills
            number += 1
            if known.round is not None or (outcome.violations and not known.keep_going):
                break


def _rounds(journal: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in journal.read_bytes().splitlines()] if journal.exists() else []


def _kills(one: dict[str, Any]) -> int:
    return sum(one["faults"].get(kind, 0) for kind in KILLS)


def _line(outcome: Outcome) -> str:
    plan, found = outcome.plan, Counter(one.kind for one in outcome.violations)
    lines = [
        f"round {plan.number} (seed {plan.seed}, {plan.nodes} nodes, sandbox {outcome.sandbox}): "
        f"{outcome.kills} kills, "
        f"{outcome.requests} requests, {outcome.attempts} attempts of checks, "
        f"{outcome.deliveries} deliveries in {outcome.seconds:.0f} s "
        f"({outcome.quiet_seconds:.0f} s until quiet), "
        f"{outcome.states}, {outcome.faults.get('git', 0)} of git, {len(outcome.errors)} errors logged"
    ]
    lines += [f"  logged: {error[:300]} … {error[-300:]}" for error in outcome.errors[:5]]
    if found:
        lines.append(f"  BROKEN: {dict(found)}; kept in {outcome.directory}")
        lines += [f"    {one.kind}: {one.what[:300]}" for one in outcome.violations[:20]]
    return "\n".join(lines)


def _report(rounds: list[dict[str, Any]]) -> int:
    faults, states, broken, interrupted = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    met, verbs = Counter[str](), dict[str, Counter[str]]()
    for one in rounds:
        faults.update(one["faults"])
        states.update(one["states"])
        interrupted.update(one["interrupted"])
        met.update(one["met"])
        for verb, ends in one["verbs"].items():
            verbs.setdefault(verb, Counter()).update(ends)
        broken.update(violation["kind"] for violation in one["violations"])
    seconds, kills = sum(one["seconds"] for one in rounds), sum(faults[kind] for kind in KILLS)
    others = [f"{kind} {faults[kind]}" for kind in faults if kind not in KILLS]
    figures = {
        "rounds": f"{len(rounds)}, {seconds:.0f} s, {kills / max(seconds, 1):.2f} kills a second",
        "kills": f"{kills} ({', '.join(f'{kind} {faults[kind]}' for kind in KILLS if faults[kind])})",
        "other faults": ", ".join(others),
        "deliveries": sum(one["deliveries"] for one in rounds),
        "requests": f"{sum(one['requests'] for one in rounds)} ({', '.join(f'{k} {v}' for k, v in states.items())})",
        "attempts of checks": sum(one.get("attempts", 0) for one in rounds),
        "kills met": ", ".join(f"{what} {n}" for what, n in met.most_common()),
        **{f"  {verb}": ", ".join(f"{end} {n}" for end, n in ends.most_common()) for verb, ends in verbs.items()},
        "interrupted": f"{100 * states['interrupted'] / max(sum(states.values()), 1):.1f} % of requests, "
        f"at {60 * kills / max(seconds, 1):.0f} kills a minute",
        "interrupted by": "; ".join(f"{n} × ({ends})" for ends, n in interrupted.items()),
        **{kind: broken[kind] for kind in KINDS},
    }
    _say("\n" + "\n".join(f"{name:<30}{figure}" for name, figure in figures.items()))
    for one in rounds:
        if one["violations"]:
            _say(f"failed: {one['plan']}, kept in {one['directory']}")
    return 1 if broken else 0


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
