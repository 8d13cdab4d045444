"""Batches on a Ray cluster: Ray Data with a pool of actors, each with a model."""

from __future__ import annotations

import json
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bitnet.base import settings
from bitnet.base.errors import InferenceError, Unsupported
from bitnet.base.invocation import extra_command
from bitnet.batch.rows import BatchRow, answers
from bitnet.runtime.request import SamplingOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from bitnet.batch.batch_options import BatchOptions

ROWS_PER_CALL = 32  # lost when an actor dies, and computed again by another one


class _Actor:
    """A process with a model; Ray calls it with columns of rows."""

    def __init__(
        self, path: str, limits: dict[str, Any], sampling: dict[str, Any], threads: int
    ) -> None:
        from bitnet.formats.containers import open_checkpoint
        from bitnet.runtime.language_model import load_checkpoint

        self._model = load_checkpoint(open_checkpoint(path), threads=threads)
        self._limits = limits | {"sampling": SamplingOptions(**sampling)}

    def __call__(self, columns: dict[str, Any]) -> dict[str, Any]:
        rows = [BatchRow(*json.loads(text)) for text in columns["row"]]
        facts_by_id = {row.id: facts for row, facts in answers(rows, self._model, **self._limits)}
        return {
            "row": [str(text) for text in columns["row"]],
            "facts": [json.dumps(facts_by_id[row.id]) for row in rows],
        }


def ray_answers(
    rows: Sequence[BatchRow],
    path: Path,
    options: BatchOptions,
    sampling: SamplingOptions | None = None,
    *,
    threads: int = 0,
) -> Iterator[tuple[BatchRow, dict[str, Any]]]:
    """Yield *rows* with their answers, as Ray finishes blocks of them.

    *path* must exist on every node. Each actor gets *threads*; if 0, as many as it has cores, by
    :func:`cores_per_actor`.
    """
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"--engine ray needs the package {error.name}", hint=extra_command("ray")
        ) from None
    if not rows:
        return
    try:
        # Ray's processes would import from this process's folder, where a downloaded model may be:
        # the setting protects those that run ``python -c``, an empty folder protects the actors.
        settings.protect_children()
        with TemporaryDirectory() as empty:
            ray.init(
                address=options.address or None,
                log_to_driver=False,
                ignore_reinit_error=True,
                runtime_env={"working_dir": empty},
            )
        nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        cores = cores_per_actor(map(int, nodes), options.actors)
        texts = [json.dumps([row.id, row.digest, row.facts, row.problem]) for row in rows]
        data = ray.data.from_items([{"row": text} for text in texts]).map_batches(
            _Actor,
            fn_constructor_args=(
                str(path.resolve()),
                options.limits,
                asdict(sampling or SamplingOptions()),
                threads or cores,
            ),
            batch_size=ROWS_PER_CALL,
            concurrency=options.actors,
            num_cpus=cores,
        )
        for item in data.iter_rows():
            yield BatchRow(*json.loads(item["row"])), json.loads(item["facts"])
    # Ray raises a ValueError for a malformed address.
    except (ray.exceptions.RayError, ConnectionError, ValueError) as error:
        raise InferenceError(
            f"the Ray job failed: {_last_line(error)}",
            hint="answers so far are kept; run the same command again to continue",
        ) from error
    finally:
        ray.shutdown()


def cores_per_actor(nodes: Iterable[int], actors: int) -> int:
    """Largest number of cores, at least 1, with which *actors* actors fit on *nodes*.

    *nodes* are the numbers of cores of the nodes; an actor cannot be spread over two.
    """
    cores = list(nodes)
    for share in range(max(cores, default=1), 1, -1):
        if sum(count // share for count in cores) >= actors:
            return share
    return 1


def _last_line(error: Exception) -> str:
    """Last line of the message of *error*, or its kind if it has none."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
