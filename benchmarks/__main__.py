"""All benchmarks, one after the other: `make bench`."""

from __future__ import annotations

from benchmarks import encoder, memory, stages, worker


def main() -> None:
    """Prints every figure that the README claims."""
    for title, run in (
        ("Each stage alone", stages.main),
        ("The worker without the encoder", worker.main),
        ("The encoder path", encoder.main),
        ("Memory", memory.main),
    ):
        print(f"\n== {title}", flush=True)
        run()


if __name__ == "__main__":
    main()
