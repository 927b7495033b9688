"""`python -m vivace.config.document`: write docs/flags.md and docs/environment.md."""

from __future__ import annotations

from pathlib import Path

from vivace.config.table import render_environment, render_markdown


def documents() -> dict[str, str]:
    return {"flags.md": render_markdown(), "environment.md": render_environment()}


def main() -> None:
    folder = Path(__file__).resolve().parents[2] / "docs"
    for name, text in documents().items():
        (folder / name).write_text(text)
        print(f"wrote {folder / name}")


if __name__ == "__main__":
    main()
