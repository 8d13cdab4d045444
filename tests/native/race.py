"""Two models, their schedulers and the pool they share, in two threads; ``inv race`` starts it.

    python tests/native/race.py FOLDER_OF_THE_INSTRUMENTED_MODULE

All answers must be the same; the thread sanitizer reports races.
"""

import importlib.util
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).parent
ROUNDS = 8


def instrument(folder):
    """Make the module in *folder* the one that ``bitnet`` runs."""
    import bitnet

    (path,) = Path(folder).glob("_native.*.so")
    spec = importlib.util.spec_from_file_location("bitnet._native", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bitnet._native"] = bitnet._native = module
    spec.loader.exec_module(module)


def main():
    """Generate with both models at once, each in a thread of its own."""
    instrument(sys.argv[1])
    sys.path.insert(0, str(HERE.parent / "support"))
    from tiny_models import tiny_gguf

    import bitnet

    answers = ([], [])

    def generate(path, texts_of_model):
        with bitnet.load(path) as model:
            texts_of_model.extend(
                model.generate("hello world", max_tokens=12) for _ in range(ROUNDS)
            )

    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.gguf" for name in "ab"]
        for path in paths:
            tiny_gguf(path)
        threads = [
            threading.Thread(target=generate, args=pair)
            for pair in zip(paths, answers, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    texts = {text for texts_of_model in answers for text in texts_of_model}
    assert all(len(texts_of_model) == ROUNDS for texts_of_model in answers), "a thread failed"
    assert len(texts) == 1, texts
    print(f"{2 * ROUNDS} answers, all the same")


if __name__ == "__main__":
    main()
