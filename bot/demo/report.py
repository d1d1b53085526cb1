"""The demo's output: each step, its actions and its checks, as text or as one JSON document."""

import time
from dataclasses import asdict, dataclass, field

import orjson
from rich.console import Console
from rich.text import Text


@dataclass(slots=True)
class Check:
    """One checked fact; `seen` is the proof, or the actual state if the check failed."""

    what: str
    held: bool
    seen: str


@dataclass(slots=True)
class Step:
    """One step of the story with its checks."""

    title: str
    did: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    seconds: float = 0.0


class Report:
    """The steps so far; printed as they happen unless the output is JSON."""

    def __init__(self, *, json: bool) -> None:
        self.steps: list[Step] = []
        self._console = Console(quiet=json, highlight=False, soft_wrap=True)
        self._json = json
        self._step_began = 0.0

    @property
    def held(self) -> bool:
        """Return whether there were checks and all of them held."""
        checks = [check for step in self.steps for check in step.checks]
        return bool(checks) and all(check.held for check in checks)

    def step(self, title: str) -> None:
        """End the current step and begin the next one."""
        self._measure()
        self.steps.append(Step(title))
        self._console.print(f"\n{len(self.steps)}. {title}", style="bold", markup=False)

    def did(self, what: str) -> None:
        """Report an action."""
        self.steps[-1].did.append(what)
        self._console.print(f"   {what}", markup=False)

    def check(self, what: str, held: bool, seen: object = "") -> None:
        """Report a check."""
        check = Check(what, held, str(seen))
        self.steps[-1].checks.append(check)
        line = Text("   ")
        line.append("✓ " if held else "✗ ", style="green" if held else "bold red")
        line.append(what)
        if check.seen and not held:
            line.append(f": {check.seen}", style="red")
        self._console.print(line)

    def quote(self, who: str, words: str) -> None:
        """Report a text from the thread, as its readers see it."""
        self.did(f"{who} wrote:")
        visible = words.partition("<!-- threadtree:")[0].strip()
        for text in visible.split("\n"):
            self._console.print(Text(f"   │ {text}", style="dim"))

    def ended(self, seconds: float) -> None:
        """Print the last line: how many checks held."""
        self._measure()
        checks = [check for step in self.steps for check in step.checks]
        held = sum(check.held for check in checks)
        if self._json:
            document = {
                "held": self.held,
                "checks": len(checks),
                "seconds": round(seconds, 1),
                "steps": [asdict(step) for step in self.steps],
            }
            print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())  # noqa: T201
            return
        verdict = "All held." if self.held else "NOT ALL HELD."
        self._console.print(
            f"\n{held} of {len(checks)} checks held in {seconds:.0f} s. {verdict}",
            style="bold green" if self.held else "bold red",
        )

    def note(self, words: str) -> None:
        """Report a remark."""
        self._console.print(Text(words, style="dim"))

    def _measure(self) -> None:
        """Record how long the current step took."""
        now = time.monotonic()
        if self.steps:
            self.steps[-1].seconds = round(now - self._step_began, 1)
        self._step_began = now
