"""`python -m bench [--seconds N] [COMMAND ...]`: COMMAND starts the web process instead of `threadtree web`."""

import argparse
import logging
import sys
from pathlib import Path

import structlog
import uvloop

from bench.receive import Figure, Offer, measure


def main() -> int:
    """Exit status 1 when anything was answered with an error or not committed."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rate", type=int, default=300, help="deliveries a second")
    parser.add_argument("web", nargs="*", metavar="COMMAND", help="what to start instead of `threadtree web`")
    known = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    web = known.web or [str(Path(sys.executable).with_name("threadtree")), "web"]
    offer = Offer(known.rate, known.seconds)
    print(
        f"{offer.per_second} signed 14 KB issue_comment deliveries a second, offered for {offer.seconds} s", flush=True
    )
    figures = uvloop.run(measure(web, offer))
    return 0 if report(figures, offer) else 1


def report(figures: list[Figure], offer: Offer) -> bool:
    """Prints the figures; whether all was answered and committed."""
    print(f"{'':20} {'answered':>9} {'errors':>7} {'committed':>10} {'p50 ms':>8} {'p99 ms':>8}")
    for figure in figures:
        answers, committed = figure.answers, "-" if figure.committed is None else figure.committed
        print(
            f"{figure.name:20} {len(answers.latencies_ms):9} {answers.errors:7} {committed:>10}"
            f" {answers.percentile_ms(50):8.2f} {answers.percentile_ms(99):8.2f}"
        )
        if answers.errors:
            print(f"{'':20} {dict(answers.statuses)}")
    ours, theirs = (figure.answers for figure in figures)
    ratios = [ours.percentile_ms(percent) / theirs.percentile_ms(percent) for percent in (50, 99)]
    print(f"{'ratio of the two':48} {ratios[0]:8.2f} {ratios[1]:8.2f}")
    failed = any(figure.answers.errors for figure in figures)
    return not failed and all(figure.committed in (None, offer.count) for figure in figures)


if __name__ == "__main__":
    raise SystemExit(main())
