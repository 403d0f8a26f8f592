"""Names of the parameters of Triton kernels, which need no Triton to check."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import regard.fast

# The launcher that Triton compiles for a kernel has a parameter of each of these names besides those of the kernel.
RESERVED = {"options", "grid", "warmup", "num_warps", "num_stages", "num_ctas"}


def iterate_kernels() -> Iterator[tuple[Path, ast.FunctionDef]]:
    """Yield the functions of `regard.fast` that are compiled by Triton."""
    for path in sorted(Path(regard.fast.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
                yield path, node


def test_kernels_have_no_parameter_that_the_launcher_reserves() -> None:
    kernels = list(iterate_kernels())
    assert len(kernels) > 40, "kernels are not found any more"
    for path, kernel in kernels:
        names = {parameter.arg for parameter in (*kernel.args.args, *kernel.args.kwonlyargs)}
        assert not names & RESERVED, f"{path.name}:{kernel.lineno}: {kernel.name}"
