"""Sweeps of the student over the frozen experiment sets, to be read and thrown away.

    python -m research.sweep runs/sets [--sizes s] [--only layers] [--teacher DIR] [--out DIR]

SETS is what `training dataset` made. Every size and every sweep has a table and a plot under
--out, and a run that is done is not done again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from training import ablation, parameters

SWEEPS = {
    "loss-weight": "student.loss_weight=[0.0, 0.1, 0.3, 1.0, 3.0]",
    "layers": "student.layers=[3, 6, 12]",
    "tokens": "student.max_tokens=[16, 32, 64]",
    "balancing": "student.balance=[none, sampling, logits]",
    "fields": (
        "student.fields=[{title: 200}, {title: 200, brand: 40},"
        " {title: 200, brand: 40, category_path: 100},"
        " {title: 200, brand: 40, category_path: 100, description: 160}]"
    ),
}


def main(
    sets: Path,
    out: Path = Path("runs/research"),
    teacher: Path | None = None,
    sizes: str = "s,m,l",
    only: Annotated[str, typer.Option(help=f"Of {', '.join(SWEEPS)}; all if not given.")] = "",
    pipeline: Path = Path("pipeline.yaml"),
    overrides: Annotated[list[str] | None, typer.Option("--set")] = None,
) -> None:
    """Sweep the student; without a teacher the loss weight means nothing and is left out."""
    frozen = msgspec.json.decode((sets / "dataset.json").read_bytes())["experiments"]
    for size in sizes.split(","):
        for name in only.split(",") if only else SWEEPS:
            if name == "loss-weight" and teacher is None:
                continue
            # Answers that are moved to validation's shares would hide what balancing does.
            own = [*(overrides or ()), *(["student.prior=training"] if name == "balancing" else [])]
            ablation.make(
                parameters.load(pipeline, own).student,
                ablation.sweeps(pipeline, own, [SWEEPS[name]]),
                sets / frozen[size],
                sets / "validation.parquet",
                None if teacher is None else sets / "transfer.parquet",
                teacher,
                sets / "taxonomy.json",
                out / size / name,
                lambda line: typer.echo(line, err=True),
            )
            typer.echo(out / size / name / ablation.PAGE)


if __name__ == "__main__":
    typer.run(main)
