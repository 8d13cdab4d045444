"""What ``inv`` offers in a checkout: every command of ``bitnet``, and the developer's own tasks."""

import sys

sys.dont_write_bytecode = False  # Invoke switches it off; without caches every start is slow

from bitnet import cli, tasks  # noqa: E402
from bitnet.tasks.declare import task  # noqa: E402


@task(help={"args": "arguments for pytest, such as '-k resume -x'"})
def test(c, args=""):
    """Run the tests with branch coverage."""
    c.run(f"{sys.executable} -m pytest --cov {args}", pty=False)


@task(help={"fix": "repair what can be repaired, and format"})
def lint(c, fix=False):
    """Check style and formatting with ruff."""
    c.run(f"{sys.executable} -m ruff check {'--fix' if fix else ''} .")
    c.run(f"{sys.executable} -m ruff format {'' if fix else '--check'} .")


@task()
def types(c):
    """Check types with mypy."""
    c.run(f"{sys.executable} -m mypy")


@task()
def native(c):
    """Build the compiled module into this checkout's environment."""
    c.run(f"{sys.executable} -m pip install --quiet --no-build-isolation --no-deps -e .")


namespace = tasks.load()
for developer_task in (test, lint, types, native):
    namespace.add_task(developer_task)

if cli.started_by_invoke():
    cli.main(namespace, binary="inv")
