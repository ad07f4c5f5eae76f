"""All benchmarks, one after the other: `make bench`."""

from __future__ import annotations

from benchmarks import encoder, linear, memory, sample_speed, stages, worker
from benchmarks.bounds import end


def main() -> None:
    """Prints every figure that the README claims; exits with 1 where one falls short."""
    short: list[str] = []
    for title, measure in (
        ("Each stage alone", stages.measure),
        ("The worker without the encoder", worker.measure),
        ("The encoder path", encoder.measure),
        ("Memory", memory.measure),
        ("The linear SVM", linear.measure),
        ("The sample catalogue", sample_speed.measure),
    ):
        print(f"\n== {title}", flush=True)
        short += [f"{title}: {line}" for line in measure()]
    print(flush=True)
    end(short)


if __name__ == "__main__":
    main()
