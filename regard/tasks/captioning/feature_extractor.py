"""Feature extraction with torchvision networks: build a network, load pretrained weights, cut it off after a layer."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import warnings
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import UserError, format_suggestion, to_single_line
from regard.models.hypothesis import Floats
from regard.models.weights_file import SAFETENSORS_SUFFIX, StateDict, get_first_sentence, read_weights_file
from regard.tasks.captioning.backbone import Backbone, Precision
from regard.tasks.captioning.image_files import Pixels

_COMPILED_OPERATORS = ("nms", "qnms")  # for object detection only; no image classification network calls them


@cache
def _define_missing_operators() -> torch.library.Library:
    """Declare torchvision's compiled operators without implementing them."""
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in _COMPILED_OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library


def import_torchvision_models(network: str) -> Any:
    """Import `torchvision.models`; raise UserError with installation advice if that fails."""
    try:
        return _import_models_module()
    except ImportError as error:
        raise UserError(
            f"extracting features with {network} needs torchvision and Pillow (pip install 'regard[vision]'); "
            "existing features do not"
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"the installed torchvision does not match torch {torch.__version__} ({to_single_line(error)}): "
            "install both from the same source, https://pytorch.org/get-started"
        ) from error


def _import_models_module() -> Any:
    """Import the module even if its compiled operators belong to another build of torch (PyPI beside CPU wheels)."""
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError as error:
        if f"torchvision::{_COMPILED_OPERATORS[0]} does not exist" not in str(error):
            raise
        _define_missing_operators()
        return importlib.import_module("torchvision.models")


_PICKLE_SUFFIXES = (".pth", ".pt")
BATCH_NORM_COUNTER = "num_batches_tracked"  # not used in evaluation mode


def download_pretrained_weights(weights_entry: Any, network: str) -> StateDict:
    """Return torchvision's weights, downloaded once into the cache of torch.hub."""
    try:
        state: StateDict = weights_entry.get_state_dict(
            progress=True, check_hash=True, map_location="cpu", weights_only=True
        )
    except OSError as error:
        raise UserError(
            f"the weights {weights_entry.name} of {network} are not on this machine and cannot be downloaded "
            f"({to_single_line(error)}): fetch {weights_entry.url} elsewhere, and name the file by --weights "
            f"or put it into {Path(torch.hub.get_dir()) / 'checkpoints'}"
        ) from error
    except Exception as error:
        raise UserError(
            f"the weights {weights_entry.name} of {network} cannot be read: {get_first_sentence(error)}"
        ) from error
    return state


def copy_weights_(state: StateDict, target: StateDict, origin: str, network: str) -> None:
    """Copy weights by name into `target`; raise UserError if one is missing or has another shape."""
    for name, tensor in target.items():
        source = state.get(name)
        if source is None:
            others = f"but {', '.join(list(state)[:3])} …" if state else "and nothing else"
            raise UserError(f"{origin} does not fit {network}: it has no {name}, {others}")
        if source.shape != tensor.shape:
            raise UserError(
                f"{origin} does not fit {network}: {name} has the shape {_format_shape(source)}, "
                f"expected {_format_shape(tensor)}"
            )
        tensor.copy_(source)


def _format_shape(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape)) or "one number"


def compute_weights_checksum(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of the names, shapes and values of weights."""
    checksum = hashlib.sha256()
    for name, tensor in weights:
        checksum.update(f"{name} {tuple(tensor.shape)}\n".encode())
        checksum.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return checksum.hexdigest()


_PRETRAINED, _RANDOM = "pretrained", "random"
SEED = 1  # of random weights, so that they are the same on every machine
_POOLING_LAYERS = (nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.MaxPool2d)


class FeatureExtractorOptions(NamedTuple):
    """Options of `regard data features`; None means the default of the network."""

    network: str = "vgg19"
    layer: str | None = None
    weights: str = _PRETRAINED
    side: int | None = None
    precision: Precision = "float16"

    @property
    def weights_file(self) -> Path | None:
        """The file that `weights` names, if it does not name weights of torchvision."""
        path = Path(self.weights)
        return path if path.suffix.lower() in (SAFETENSORS_SUFFIX, *_PICKLE_SUFFIXES) else None


class FeatureExtractor:
    """Frozen network that turns cropped images into feature grids."""

    def __init__(self, model: nn.Module, backbone: Backbone, device: torch.device) -> None:
        """`model` returns a dictionary with the output of the backbone's layer."""
        self.model = model.to(device)
        self.backbone = backbone
        self.device = device
        self.mean, self.std = (torch.tensor(each).view(3, 1, 1).to(device) for each in (backbone.mean, backbone.std))

    @torch.inference_mode()
    def extract_grids(self, frames: Pixels) -> Floats:
        """Return features (B, rows, columns, F) of images (B, side, side, 3), in the stored precision."""
        pixels = torch.from_numpy(frames).to(self.device).permute(0, 3, 1, 2).float() / 255
        output = self.model((pixels - self.mean) / self.std)[self.backbone.layer]
        with np.errstate(over="ignore"):  # overflow becomes inf, which the caller checks for
            grids: Floats = output.permute(0, 2, 3, 1).contiguous().cpu().numpy().astype(self.backbone.precision)
        return grids


def build_feature_extractor(options: FeatureExtractorOptions, device: torch.device) -> FeatureExtractor:
    """Build the network that the options ask for, with its weights."""
    vision = import_torchvision_models(options.network)
    names = vision.list_models(module=vision)
    if options.network not in names:
        raise UserError(f"torchvision has no network {options.network!r}{format_suggestion(options.network, names)}")
    weights_entry = _choose_weights_entry(vision, options)
    transforms = weights_entry.transforms()
    side = options.side or int(transforms.crop_size[0])
    whole_model = build_torchvision_network(vision, options)
    layer = options.layer or find_default_layer(whole_model, options.network, side)
    model, grid = truncate_network(whole_model, options.network, layer, side)
    state = _allocate_weights(model, whole_model.state_dict())
    weights = _load_weights_(state, options, weights_entry)
    backbone = Backbone(
        network=options.network,
        layer=layer,
        weights=weights,
        checksum=compute_weights_checksum(state.items()),
        grid=grid,
        side=side,
        resize=round(side * int(transforms.resize_size[0]) / int(transforms.crop_size[0])),
        interpolation=transforms.interpolation.value,
        mean=tuple(map(float, transforms.mean)),
        std=tuple(map(float, transforms.std)),
        precision=options.precision,
    )
    return FeatureExtractor(model, backbone, device)


@lru_cache(maxsize=4)
def rebuild_feature_extractor(backbone: Backbone, device: torch.device) -> FeatureExtractor:
    """Build the network that a backbone describes, for other images; raise UserError if its weights differ."""
    options = FeatureExtractorOptions(*(getattr(backbone, name) for name in FeatureExtractorOptions._fields))
    if options.weights_file and not options.weights_file.is_file():
        raise UserError(
            f"{backbone.weights} is missing: the weights of {backbone.network} that extracted the training features. "
            "Restore the file, or set data.backbone.weights in the run's config.yaml to its new path"
        )
    extractor = build_feature_extractor(options, device)
    if extractor.backbone.checksum != backbone.checksum:
        raise UserError(
            f"the weights of {backbone.network} ({backbone.weights}) are not those that extracted the training "
            f"features: their checksum is {extractor.backbone.checksum[:16]}…, not {backbone.checksum[:16]}…"
        )
    return FeatureExtractor(extractor.model, backbone, device)


def build_torchvision_network(torchvision_models: Any, options: FeatureExtractorOptions) -> Any:
    """Build a network with random weights if the options ask for them, else on the meta device, without memory."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision announces changes of its initialisation
        torch.manual_seed(SEED)
        try:
            with torch.device("cpu" if options.weights == _RANDOM else "meta"):
                model = torchvision_models.get_model(options.network, weights=None)
        except (NotImplementedError, RuntimeError):  # networks that compute sizes from tensor values
            model = torchvision_models.get_model(options.network, weights=None)
    if hasattr(model, "transform_input"):  # torchvision's weights of googlenet and inception_v3 need it
        model.transform_input = True
    return model.eval()


def _choose_weights_entry(torchvision_models: Any, options: FeatureExtractorOptions) -> Any:
    """Return torchvision's entry for named weights; for files and random weights its default, for the transforms."""
    entries = torchvision_models.get_model_weights(options.network)
    if options.weights in (_PRETRAINED, _RANDOM) or options.weights_file:
        return entries.DEFAULT
    if options.weights not in entries.__members__:
        choices = [_PRETRAINED, _RANDOM, *(name for name in entries.__members__ if name != "DEFAULT")]
        raise UserError(
            f"{options.network} has no weights {options.weights!r}"
            f"{format_suggestion(options.weights, choices)} (or a .safetensors or .pth file)"
        )
    return entries[options.weights]


def _load_weights_(target: StateDict, options: FeatureExtractorOptions, weights_entry: Any) -> str:
    """Fill `target`; return a name for the weights that stays valid if torchvision changes its defaults."""
    if options.weights_file:
        copy_weights_(read_weights_file(options.weights_file), target, options.weights, options.network)
        return str(options.weights_file.absolute())
    if options.weights == _RANDOM:
        return _RANDOM
    state = download_pretrained_weights(weights_entry, options.network)
    copy_weights_(state, target, weights_entry.name, options.network)
    return str(weights_entry.name)


def find_default_layer(model: nn.Module, network: str, side: int) -> str:
    """Return the last layer whose output is a feature grid, before any final pooling.

    For vgg19 that is the rectified conv5_4, whose 14 × 14 positions Xu et al. attend to.
    """
    from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

    tracing = _make_tracing_options(model)
    _, nodes = get_graph_node_names(model, **tracing)
    blocks = [name for name in _iterate_blocks(model) if any(f"{node}.".startswith(f"{name}.") for node in nodes)]
    extractor = create_feature_extractor(model, blocks, **tracing)
    default_layer = None
    for name, output in _process_zeros(extractor, network, side).items():
        if _is_grid(output):
            default_layer = name
        elif isinstance(output, Tensor) and output.ndim == 3:  # tokens of a vision Transformer, not a grid
            default_layer = None
    if default_layer is None:
        raise UserError(
            f"{network} has no feature grid at its end for images of {side} × {side} pixels; name a --layer"
        )
    return default_layer


def _make_tracing_options(model: nn.Module) -> dict[str, Any]:
    """Keep modules with buffers whole: results of tensor operations on them would be constants of the traced graph."""
    leaf_modules = {type(module) for module in model.modules() if next(module.buffers(recurse=False), None) is not None}
    return {"tracer_kwargs": {"leaf_modules": list(leaf_modules)}, "suppress_diff_warning": True}


def _process_zeros(extractor: nn.Module, network: str, side: int) -> dict[str, Any]:
    """Return the outputs of layers, by name, for an image of zeros."""
    image = torch.zeros(1, 3, side, side, device=next(extractor.parameters()).device)
    try:
        with torch.inference_mode():
            outputs: dict[str, Any] = extractor(image)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(
            f"{network} cannot process images of {side} × {side} pixels: {to_single_line(error)}"
        ) from error
    return outputs


def _iterate_blocks(model: nn.Module) -> Iterator[str]:
    """Yield names of non-pooling blocks: each item of a list, and of a sequence that ends in a pool the one before."""
    for name, module in model.named_children():
        children = list(module.named_children())
        if isinstance(module, nn.ModuleList):
            yield from (f"{name}.{child}" for child, _ in children)
        elif isinstance(module, nn.Sequential) and len(children) > 1 and isinstance(children[-1][1], nn.MaxPool2d):
            yield f"{name}.{children[-2][0]}"
        elif not isinstance(module, _POOLING_LAYERS):
            yield name


def _is_grid(output: Any) -> bool:
    """Return whether an output has the shape (1, features, n, n) with n > 1; square images give square grids."""
    return isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] == output.shape[3] > 1


def truncate_network(model: nn.Module, network: str, layer: str, side: int) -> tuple[nn.Module, tuple[int, int, int]]:
    """Return a network without the layers that `layer` does not depend on, and the layer's (rows, columns, features).

    The result shares its weights with `model` and returns a dictionary with the output of `layer`.
    """
    from torchvision.models.feature_extraction import create_feature_extractor

    names = [name for name, _ in model.named_modules() if name]
    if layer not in names:
        suggestions = difflib.get_close_matches(layer, names, n=5, cutoff=0.0)
        raise UserError(f"{network} has no layer {layer!r}; names like it are {', '.join(suggestions)}")
    try:
        extractor: nn.Module = create_feature_extractor(model, [layer], **_make_tracing_options(model))
    except ValueError as error:
        raise UserError(f"the forward pass does not use the layer {layer!r}") from error
    output = _process_zeros(extractor, network, side)[layer]
    if not _is_grid(output):
        default_layer = find_default_layer(model, network, side)
        raise UserError(
            f"the output of {layer} of {network}, {_describe_output(output)}, is not a feature grid; "
            f"try {default_layer}"
        )
    features, rows, columns = output.shape[1:]
    return extractor, (rows, columns, features)


def _allocate_weights(model: nn.Module, names: Iterable[str]) -> StateDict:
    """Return the weights of a network in the order of `names`, after allocating those on the meta device."""
    if next(model.parameters()).is_meta:
        model.to_empty(device="cpu")
    state = model.state_dict()
    return {name: state[name] for name in names if name in state and not name.endswith(BATCH_NORM_COUNTER)}


def _describe_output(output: Any) -> str:
    if not isinstance(output, Tensor):
        return f"a {type(output).__name__}"
    return f"{' × '.join(f'{length:,}' for length in output.shape[1:])} numbers"
