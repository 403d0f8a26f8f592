"""torchvision, where it is installed: imported when it is needed, and by nobody else."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.data.readers.text_io import to_single_line
from regard.errors import UserError, format_suggestion
from regard.search import Floats
from regard.tasks.captioning.backbone import Backbone, Pixels, Precision

_COMPILED_OPERATORS = ("nms", "qnms")  # operators that detect objects; no network that classifies images calls them


@functools.cache
def _define_missing_operators() -> torch.library.Library:
    """Names for the compiled operators, without the operators."""
    named = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in _COMPILED_OPERATORS:
        named.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return named


def import_torchvision_models(network: str) -> Any:
    """torchvision's networks, of which one is wanted, or a word on how to have them."""
    try:
        return _import_models_module()
    except ImportError as error:
        raise UserError(
            f"sending images through {network} takes torchvision and Pillow (pip install 'regard[vision]'); features "
            "that are made already do without"
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"the torchvision that is installed does not go with torch {torch.__version__} ({to_single_line(error)}): "
            "install both from the same place, https://pytorch.org/get-started"
        ) from error


def _import_models_module() -> Any:
    """The module, also where its compiled part was made for another build of torch, as PyPI's is beside a CPU's."""
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError as error:
        if f"torchvision::{_COMPILED_OPERATORS[0]} does not exist" not in str(error):
            raise
        _define_missing_operators()
        return importlib.import_module("torchvision.models")


_SAFETENSORS_SUFFIX, _PICKLE_SUFFIXES = ".safetensors", (".pth", ".pt")
_WRAPPER_KEYS = ("state_dict", "model")  # under which training programs keep weights beside other things
BATCH_NORM_COUNTER = "num_batches_tracked"  # of batch normalisation, which never reads it once it is trained

StateDict = Mapping[str, Tensor]


def is_weights_file_name(weights: str) -> bool:
    """Whether weights are named by their file."""
    return Path(weights).suffix.lower() in (_SAFETENSORS_SUFFIX, *_PICKLE_SUFFIXES)


def read_weights_file(path: Path) -> StateDict:
    """The weights that a file holds."""
    if not path.is_file():
        raise UserError(f"there is no file {path}, which should hold a network's weights")
    try:
        found = load_file(path) if path.suffix.lower() == _SAFETENSORS_SUFFIX else _load_pickled_tensors(path)
    except Exception as error:  # whatever bytes that are no weights make either reader stumble on
        raise UserError(f"{path} cannot be read as a network's weights: {_get_first_sentence(error)}") from error
    for key in _WRAPPER_KEYS:
        found = found[key] if isinstance(found, dict) and isinstance(found.get(key), dict) else found
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        raise UserError(
            f"{path} holds no weights by their names, which `torch.save(network.state_dict(), FILE)` writes"
        )
    return found


def _load_pickled_tensors(path: Path) -> Any:
    """What PyTorch has written, as long as it is tensors and plain values."""
    return torch.load(path, map_location="cpu", weights_only=True)


def _get_first_sentence(error: Exception) -> str:
    """The first sentence of what PyTorch says, which is whole paragraphs."""
    return to_single_line(error).split(". ")[0]


def download_pretrained_weights(weights_entry: Any, network: str) -> StateDict:
    """torchvision's own, which it keeps in a folder of PyTorch's once they are downloaded."""
    try:
        found: StateDict = weights_entry.get_state_dict(
            progress=True, check_hash=True, map_location="cpu", weights_only=True
        )
    except OSError as error:
        raise UserError(
            f"the weights {weights_entry.name} of {network} are not on this machine and cannot be downloaded "
            f"({to_single_line(error)}): fetch {weights_entry.url} elsewhere, and name the file by --weights or put it into "
            f"{Path(torch.hub.get_dir()) / 'checkpoints'}"
        ) from error
    except Exception as error:
        raise UserError(
            f"the weights {weights_entry.name} of {network} cannot be read: {_get_first_sentence(error)}"
        ) from error
    return found


def copy_weights_(state: StateDict, target: StateDict, origin: str, network: str) -> None:
    """Copies into `own` the weights of the same names, all of which must be there and of the same sizes."""
    for name, tensor in target.items():
        given = state.get(name)
        if given is None:
            raise UserError(f"{origin} does not fit {network}: it has no {name}{_list_some_names(state)}")
        if given.shape != tensor.shape:
            raise UserError(
                f"{origin} does not fit {network}: {name} is {_format_shape(given)} there, and {_format_shape(tensor)} here"
            )
        tensor.copy_(given)


def _list_some_names(state: StateDict) -> str:
    """A few of the names that there are."""
    return f", but {', '.join(list(state)[:3])} …" if state else ", and nothing else"


def _format_shape(tensor: Tensor) -> str:
    """As a person writes it."""
    return " × ".join(map(str, tensor.shape)) or "one number"


def compute_weights_checksum(weights: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of weights, their names and their sizes."""
    found = hashlib.sha256()
    for name, tensor in weights:
        found.update(f"{name} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return found.hexdigest()


_PRETRAINED, _RANDOM = "pretrained", "random"
SEED = 1  # of random weights, which are the same wherever they are made
_POOLING_LAYERS = (nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.MaxPool2d)


class FeatureExtractorOptions(NamedTuple):
    """What somebody asks for; None is what is usual."""

    network: str = "vgg19"
    layer: str | None = None
    weights: str = _PRETRAINED
    side: int | None = None
    precision: Precision = "float16"


class _LayerReachedError(Exception):
    """An image has come to the layer; nothing that is behind it is computed."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class _ForwardTrace(NamedTuple):
    """What happened on the way of an image: modules that were entered, and those that were left with what they gave."""

    entered_modules: list[str]
    module_outputs: dict[str, Any]


class FeatureExtractor:
    """Frames in, grids out."""

    def __init__(self, model: nn.Module, backbone: Backbone, device: torch.device) -> None:
        self.model = model.to(device)
        self.backbone = backbone
        self.device = device
        self.mean, self.std = (torch.tensor(one).view(3, 1, 1).to(device) for one in (backbone.mean, backbone.std))

    @torch.inference_mode()
    def extract_grids(self, frames: Pixels) -> Floats:
        """Frames B,side,side,3 -> B,rows,columns,features, as precise as they are kept."""
        pixels = torch.from_numpy(frames).to(self.device).permute(0, 3, 1, 2).float() / 255
        output = _run_up_to_layer(self.model, self.backbone.layer, (pixels - self.mean) / self.std)
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and whoever asked looks for that
            found: Floats = output.permute(0, 2, 3, 1).contiguous().cpu().numpy().astype(self.backbone.precision)
        return found


def _run_up_to_layer(model: nn.Module, layer: str, images: Tensor) -> Any:
    """What a layer gives for images; nothing behind it is computed."""

    def raise_output(_module: nn.Module, _inputs: Any, output: Any) -> None:
        raise _LayerReachedError(output)

    handle = model.get_submodule(layer).register_forward_hook(raise_output)
    try:
        model(images)
    except _LayerReachedError as found:
        return found.output
    finally:
        handle.remove()
    raise UserError(f"no image passes through the layer {layer!r}")


def build_feature_extractor(options: FeatureExtractorOptions, device: torch.device) -> FeatureExtractor:
    """The network that somebody asks for."""
    vision = import_torchvision_models(options.network)
    names = vision.list_models(module=vision)
    if options.network not in names:
        raise UserError(f"torchvision has no network {options.network!r}{format_suggestion(options.network, names)}")
    member = _choose_weights_entry(vision, options)
    shows = member.transforms()
    side = options.side or int(shows.crop_size[0])
    model = build_torchvision_network(vision, options)
    layer = options.layer or find_default_layer(model, options.network, side)
    grid = remove_unused_layers(model, options.network, layer, side)
    own = _allocate_weights(model)
    _load_weights(own, options, member)
    backbone = Backbone(
        network=options.network,
        layer=layer,
        weights=_make_permanent_weights_name(options.weights, member),
        checksum=compute_weights_checksum(own.items()),
        grid=grid,
        side=side,
        resize=round(side * int(shows.resize_size[0]) / int(shows.crop_size[0])),
        interpolation=shows.interpolation.value,
        mean=tuple(map(float, shows.mean)),
        std=tuple(map(float, shows.std)),
        precision=options.precision,
    )
    return FeatureExtractor(model, backbone, device)


@lru_cache(maxsize=4)
def rebuild_feature_extractor(backbone: Backbone, device: torch.device) -> FeatureExtractor:
    """The network that made features, once more, for other images."""
    wanted = FeatureExtractorOptions(
        backbone.network, backbone.layer, backbone.weights, backbone.side, backbone.precision
    )
    if is_weights_file_name(backbone.weights) and not Path(backbone.weights).is_file():
        raise UserError(
            f"{backbone.weights} is not there any more, the weights of {backbone.network} that made the features which "
            "the model learnt from: put them back or say in the run's config.yaml where they are, data.backbone.weights"
        )
    made = build_feature_extractor(wanted, device)
    if made.backbone.checksum != backbone.checksum:
        raise UserError(
            f"the weights of {backbone.network} ({backbone.weights}) are not those that made the features which the "
            f"model learnt from: their checksum is {made.backbone.checksum[:16]}…, not {backbone.checksum[:16]}…"
        )
    return FeatureExtractor(made.model, backbone, device)


def build_torchvision_network(torchvision_models: Any, options: FeatureExtractorOptions) -> Any:
    """A network before it has weights, or with random ones where these are wanted."""
    with _seed_random_weights():
        model = (
            torchvision_models.get_model(options.network, weights=None)
            if options.weights == _RANDOM
            else _build_network_on_meta(torchvision_models, options)
        )
    if hasattr(model, "transform_input"):  # torchvision's weights of googlenet and inception_v3 want it
        model.transform_input = True
    return model.eval()


def _build_network_on_meta(torchvision_models: Any, options: FeatureExtractorOptions) -> Any:
    """A network whose weights take neither room nor time, as far as it can be had without."""
    try:
        with torch.device("meta"):
            return torchvision_models.get_model(options.network, weights=None)
    except (NotImplementedError, RuntimeError):  # those that compute with tensors how large they are
        return torchvision_models.get_model(options.network, weights=None)


@contextmanager
def _seed_random_weights() -> Iterator[None]:
    """Weights that are made in here are those of the seed, and whoever draws numbers outside notices nothing."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of networks that will begin in another way some day
        torch.manual_seed(SEED)
        yield


def _choose_weights_entry(torchvision_models: Any, options: FeatureExtractorOptions) -> Any:
    """torchvision's weights of a name; for others its usual ones, which say what a network is shown."""
    every = torchvision_models.get_model_weights(options.network)
    if options.weights in (_PRETRAINED, _RANDOM) or is_weights_file_name(options.weights):
        return every.DEFAULT
    if options.weights not in every.__members__:
        choices = [_PRETRAINED, _RANDOM, *(name for name in every.__members__ if name != "DEFAULT")]
        raise UserError(
            f"there are no weights {options.weights!r} of {options.network}{format_suggestion(options.weights, choices)} "
            "(or a .safetensors or .pth file)"
        )
    return every[options.weights]


def _make_permanent_weights_name(weights: str, weights_entry: Any) -> str:
    """What the weights are called for good: what is usual today may not be tomorrow."""
    if is_weights_file_name(weights):
        return str(Path(weights).absolute())
    return _RANDOM if weights == _RANDOM else str(weights_entry.name)


def _load_weights(target: StateDict, options: FeatureExtractorOptions, weights_entry: Any) -> None:
    """Puts weights into a network that has random ones."""
    if is_weights_file_name(options.weights):
        copy_weights_(read_weights_file(Path(options.weights)), target, options.weights, options.network)
    elif options.weights != _RANDOM:
        copy_weights_(
            download_pretrained_weights(weights_entry, options.network), target, weights_entry.name, options.network
        )


def _trace_forward(model: nn.Module, network: str, side: int, layer: str | None = None) -> _ForwardTrace:
    """The way of an image through a network, up to a layer."""
    entered: list[str] = []
    left: dict[str, Any] = {}

    def record_entry(name: str) -> Callable[..., None]:
        return lambda *_: entered.append(name)

    def record_output(name: str) -> Callable[..., None]:
        return lambda _module, _inputs, output: left.update({name: output})

    handles = [one.register_forward_pre_hook(record_entry(name)) for name, one in model.named_modules()]
    handles += [one.register_forward_hook(record_output(name)) for name, one in model.named_modules()]
    image = torch.zeros(1, 3, side, side, device=next(model.parameters()).device)
    try:
        with torch.inference_mode():
            model(image) if layer is None else _run_up_to_layer(model, layer, image)
    except UserError:
        raise
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(f"{network} cannot read images of {side} pixels to a side: {to_single_line(error)}") from error
    finally:
        for handle in handles:
            handle.remove()
    return _ForwardTrace(entered, left)


def find_default_layer(model: nn.Module, network: str, side: int) -> str:
    """The last layer whose output is a grid, before whatever makes that grid coarser to end with.

    Of vgg19 it is the rectified conv5_4, whose 14 × 14 places Xu et al. look at.
    """
    left = _trace_forward(model, network, side).module_outputs
    found = None
    for name in _iterate_blocks(model):
        output = left.get(name)
        if _is_grid(output):
            found = name
        elif isinstance(output, Tensor) and output.ndim == 3:  # words of a Transformer, of which no place is one
            found = None
    if found is None:
        raise UserError(f"{network} ends in no grid of places for images of {side} pixels to a side; name a --layer")
    return found


def _iterate_blocks(model: nn.Module) -> Iterator[str]:
    """The parts of a network that do not pool: of a list each one, of a row that ends in a pool the one before it."""
    for name, module in model.named_children():
        inner = list(module.named_children())
        if isinstance(module, nn.ModuleList):
            yield from (f"{name}.{one}" for one, _ in inner)
        elif isinstance(module, nn.Sequential) and len(inner) > 1 and isinstance(inner[-1][1], nn.MaxPool2d):
            yield f"{name}.{inner[-2][0]}"
        elif not isinstance(module, _POOLING_LAYERS):
            yield name


def _is_grid(output: Any) -> bool:
    """Whether it is 1,features,rows,columns of more places than one; those of a square image are a square."""
    return isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] == output.shape[3] > 1


def remove_unused_layers(model: nn.Module, network: str, layer: str, side: int) -> tuple[int, int, int]:
    """The grid of a layer; the parts of the network that it does not depend on are gone."""
    names = [name for name, _ in model.named_modules() if name]
    if layer not in names:
        close = difflib.get_close_matches(layer, names, n=5, cutoff=0.0)
        raise UserError(f"{network} has no layer {layer!r}; names like it are {', '.join(close)}")
    entered, left = _trace_forward(model, network, side, layer)
    output = left[layer]
    if not _is_grid(output):
        better = find_default_layer(model, network, side)
        raise UserError(
            f"{layer} of {network} gives {_describe_output(output)}, and no grid of places, as {better} does"
        )
    passed = {*entered, *(f"{name}.{inner}" for name in left for inner, _ in model.get_submodule(name).named_modules())}
    for name in reversed(names):  # what is inside of others first
        if name not in passed:
            model.set_submodule(name, nn.Identity())
    features, rows, columns = output.shape[1:]
    return rows, columns, features


def _allocate_weights(model: nn.Module) -> StateDict:
    """The weights of a network by name, with room for those that have none yet."""
    if next(model.parameters()).is_meta:
        model.to_empty(device="cpu")
    return {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(BATCH_NORM_COUNTER)}


def _describe_output(output: Any) -> str:
    """The form of what a layer gives."""
    if not isinstance(output, Tensor):
        return f"a {type(output).__name__}"
    return f"{' × '.join(f'{length:,}' for length in output.shape[1:])} numbers"
