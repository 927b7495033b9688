"""Size is a cost: every room has a limit, and docs/architecture.md says how large each is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "vivace"
PAGE = ROOT / "docs" / "architecture.md"
CORE = ("engine", "kv", "worker", "layers", "models", "sampling", "protocol")
CORE_LIMIT = 20_000
KERNELS = "platforms/cpu/kernels"
PARTS = (
    *("engine/drafts", "worker/drafters", "worker/pooling"),
    *("models/pooling", "models/recurrent", "server/apis"),
)
"""of rooms, counted by themselves: the rest runs without them"""
STALE = 0.3
"""how far the page's count may be from the real one, or 500 lines"""


def lines(folder: Path, suffixes: tuple[str, ...]) -> int:
    files = (path for path in folder.rglob("*") if path.suffix in suffixes)
    return sum(len(path.read_text().splitlines()) for path in files)


def measured() -> dict[str, int]:
    """Room -> lines of Python; `.`: the modules beside the rooms; the kernels: C++."""
    rooms = [path for path in PACKAGE.iterdir() if path.is_dir() and list(path.rglob("*.py"))]
    found = {room.name: lines(room, (".py",)) for room in rooms}
    found["."] = sum(len(path.read_text().splitlines()) for path in PACKAGE.glob("*.py"))
    for part in PARTS:
        found[part] = lines(PACKAGE / part, (".py",))
        found[part.partition("/")[0]] -= found[part]
    found[KERNELS] = lines(PACKAGE / KERNELS, (".cpp", ".h", ".inc"))
    return found


def promised() -> dict[str, tuple[int, int]]:
    """Room -> (lines it has by the page, lines it may have)."""
    table = PAGE.read_text().partition("| room | lines | limit |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([\w./]+?)/?` \| ([\d,]+) \| ([\d,]+) \|", table, re.MULTILINE)
    return {
        room: (int(has.replace(",", "")), int(limit.replace(",", ""))) for room, has, limit in rows
    }


def test_no_room_is_larger_than_it_may_be() -> None:
    limits = {room: limit for room, (_, limit) in promised().items()}
    too_large = {
        room: f"{count} lines, limit {limits[room]}"
        for room, count in measured().items()
        if room in limits and count > limits[room]
    }
    assert not too_large, (
        f"{too_large}: look for what your change lets you delete, or merge; if the room must "
        "grow, raise its limit in the table of docs/architecture.md and say why in the commit"
    )


def test_the_core_stays_small() -> None:
    limits = promised()
    assert sum(limits[room][1] for room in CORE) <= CORE_LIMIT, (
        f"the limits of {', '.join(CORE)} in docs/architecture.md may add up to {CORE_LIMIT:,}: "
        "what one room gets another one gives"
    )


def test_the_page_knows_every_room_and_its_size() -> None:
    real, page = measured(), promised()
    assert set(page) == set(real), "the table of sizes in docs/architecture.md: add or remove rows"
    stale = {
        room: f"{has} in the page, {real[room]} in fact"
        for room, (has, _) in page.items()
        if abs(has - real[room]) > max(500, STALE * real[room])
    }
    assert not stale, f"put the present counts into the table of docs/architecture.md: {stale}"
