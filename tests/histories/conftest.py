"""Options for many histories: `make histories ARGS="--count 10000 --seed 1"`."""

import pytest

PER_BATCH = 50
SHORT = {"off": 18, "bwrap": 6}
"""The numbers of histories in every run of the tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--count", type=int, default=0, help="how many new histories to play")
    parser.addoption("--seed", type=int, default=1, help="which ones")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Divide the histories into batches; every fourth has a sandbox. A batch's name is enough to play it again."""
    if "batch" not in metafunc.fixturenames:
        return
    count, seed = (int(metafunc.config.getoption(f"--{name}", 0)) for name in ("count", "seed"))
    kinds: list[tuple[str, int | None, int]] = [
        ("bwrap" if batch % 4 == 3 else "off", seed * 10_000 + batch, min(PER_BATCH, count - batch * PER_BATCH))
        for batch in range(-(-count // PER_BATCH))
    ] or [(sandbox, None, number) for sandbox, number in SHORT.items()]
    ids = [f"{sandbox}-{batch}" if batch is not None else sandbox for sandbox, batch, _ in kinds]
    metafunc.parametrize(("sandbox", "batch", "number"), kinds, ids=ids)
