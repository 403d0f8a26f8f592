"""A network of torchvision's, frozen, up to a layer whose output is a grid: images in, features of places out."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.files import in_a_line
from regard.errors import UserError, nearest
from regard.search import Floats
from regard.tasks.captioning.backbone import Backbone, Pixels, Precision
from regard.tasks.captioning.vision import models
from regard.tasks.captioning.weights import COUNTER, State, checksum, from_file, is_file_name, pretrained, put

PRETRAINED, RANDOM = "pretrained", "random"
SEED = 1  # of random weights, which are the same wherever they are made
POOLS = (nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.MaxPool2d)


class Wanted(NamedTuple):
    """What somebody asks for; None is what is usual."""

    network: str = "vgg19"
    layer: str | None = None
    weights: str = PRETRAINED
    side: int | None = None
    precision: Precision = "float16"


class ReachedError(Exception):
    """An image has come to the layer; nothing that is behind it is computed."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class Walk(NamedTuple):
    """What happened on the way of an image: modules that were entered, and those that were left with what they gave."""

    entered: list[str]
    left: dict[str, Any]


class Network:
    """Frames in, grids out."""

    def __init__(self, model: nn.Module, backbone: Backbone, device: torch.device) -> None:
        self.model = model.to(device)
        self.backbone = backbone
        self.device = device
        self.mean, self.std = (torch.tensor(one).view(3, 1, 1).to(device) for one in (backbone.mean, backbone.std))

    @torch.inference_mode()
    def grids(self, frames: Pixels) -> Floats:
        """Frames B,side,side,3 -> B,rows,columns,features, as precise as they are kept."""
        pixels = torch.from_numpy(frames).to(self.device).permute(0, 3, 1, 2).float() / 255
        output = reached(self.model, self.backbone.layer, (pixels - self.mean) / self.std)
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and whoever asked looks for that
            found: Floats = output.permute(0, 2, 3, 1).contiguous().cpu().numpy().astype(self.backbone.precision)
        return found


def reached(model: nn.Module, layer: str, images: Tensor) -> Any:
    """What a layer gives for images; nothing behind it is computed."""

    def stop(_module: nn.Module, _inputs: Any, output: Any) -> None:
        raise ReachedError(output)

    handle = model.get_submodule(layer).register_forward_hook(stop)
    try:
        model(images)
    except ReachedError as found:
        return found.output
    finally:
        handle.remove()
    raise UserError(f"no image passes through the layer {layer!r}")


def built(wanted: Wanted, device: torch.device) -> Network:
    """The network that somebody asks for."""
    vision = models(wanted.network)
    names = vision.list_models(module=vision)
    if wanted.network not in names:
        raise UserError(f"torchvision has no network {wanted.network!r}{nearest(wanted.network, names)}")
    member = member_of(vision, wanted)
    shows = member.transforms()
    side = wanted.side or int(shows.crop_size[0])
    model = begun(vision, wanted)
    layer = wanted.layer or usual(model, wanted.network, side)
    grid = trimmed(model, wanted.network, layer, side)
    own = weights_of(model)
    fill(own, wanted, member)
    backbone = Backbone(
        network=wanted.network,
        layer=layer,
        weights=kept_as(wanted.weights, member),
        checksum=checksum(own.items()),
        grid=grid,
        side=side,
        resize=round(side * int(shows.resize_size[0]) / int(shows.crop_size[0])),
        interpolation=shows.interpolation.value,
        mean=tuple(map(float, shows.mean)),
        std=tuple(map(float, shows.std)),
        precision=wanted.precision,
    )
    return Network(model, backbone, device)


@lru_cache(maxsize=4)
def again(backbone: Backbone, device: torch.device) -> Network:
    """The network that made features, once more, for other images."""
    wanted = Wanted(backbone.network, backbone.layer, backbone.weights, backbone.side, backbone.precision)
    if is_file_name(backbone.weights) and not Path(backbone.weights).is_file():
        raise UserError(
            f"{backbone.weights} is not there any more, the weights of {backbone.network} that made the features which "
            "the model learnt from: put them back or say in the run's config.yaml where they are, data.backbone.weights"
        )
    made = built(wanted, device)
    if made.backbone.checksum != backbone.checksum:
        raise UserError(
            f"the weights of {backbone.network} ({backbone.weights}) are not those that made the features which the "
            f"model learnt from: their checksum is {made.backbone.checksum[:16]}…, not {backbone.checksum[:16]}…"
        )
    return Network(made.model, backbone, device)


def begun(vision: Any, wanted: Wanted) -> Any:
    """A network before it has weights, or with random ones where these are wanted."""
    with fresh():
        model = vision.get_model(wanted.network, weights=None) if wanted.weights == RANDOM else bare(vision, wanted)
    if hasattr(model, "transform_input"):  # torchvision's weights of googlenet and inception_v3 want it
        model.transform_input = True
    return model.eval()


def bare(vision: Any, wanted: Wanted) -> Any:
    """A network whose weights take neither room nor time, as far as it can be had without."""
    try:
        with torch.device("meta"):
            return vision.get_model(wanted.network, weights=None)
    except (NotImplementedError, RuntimeError):  # those that compute with tensors how large they are
        return vision.get_model(wanted.network, weights=None)


@contextmanager
def fresh() -> Iterator[None]:
    """Weights that are made in here are those of the seed, and whoever draws numbers outside notices nothing."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of networks that will begin in another way some day
        torch.manual_seed(SEED)
        yield


def member_of(vision: Any, wanted: Wanted) -> Any:
    """torchvision's weights of a name; for others its usual ones, which say what a network is shown."""
    every = vision.get_model_weights(wanted.network)
    if wanted.weights in (PRETRAINED, RANDOM) or is_file_name(wanted.weights):
        return every.DEFAULT
    if wanted.weights not in every.__members__:
        choices = [PRETRAINED, RANDOM, *(name for name in every.__members__ if name != "DEFAULT")]
        raise UserError(
            f"there are no weights {wanted.weights!r} of {wanted.network}{nearest(wanted.weights, choices)} "
            "(or a .safetensors or .pth file)"
        )
    return every[wanted.weights]


def kept_as(weights: str, member: Any) -> str:
    """What the weights are called for good: what is usual today may not be tomorrow."""
    if is_file_name(weights):
        return str(Path(weights).absolute())
    return RANDOM if weights == RANDOM else str(member.name)


def fill(own: State, wanted: Wanted, member: Any) -> None:
    """Puts weights into a network that has random ones."""
    if is_file_name(wanted.weights):
        put(from_file(Path(wanted.weights)), own, wanted.weights, wanted.network)
    elif wanted.weights != RANDOM:
        put(pretrained(member, wanted.network), own, member.name, wanted.network)


def walked(model: nn.Module, network: str, side: int, layer: str | None = None) -> Walk:
    """The way of an image through a network, up to a layer."""
    entered: list[str] = []
    left: dict[str, Any] = {}

    def enters(name: str) -> Callable[..., None]:
        return lambda *_: entered.append(name)

    def leaves(name: str) -> Callable[..., None]:
        return lambda _module, _inputs, output: left.update({name: output})

    handles = [one.register_forward_pre_hook(enters(name)) for name, one in model.named_modules()]
    handles += [one.register_forward_hook(leaves(name)) for name, one in model.named_modules()]
    image = torch.zeros(1, 3, side, side, device=next(model.parameters()).device)
    try:
        with torch.inference_mode():
            model(image) if layer is None else reached(model, layer, image)
    except UserError:
        raise
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(f"{network} cannot read images of {side} pixels to a side: {in_a_line(error)}") from error
    finally:
        for handle in handles:
            handle.remove()
    return Walk(entered, left)


def usual(model: nn.Module, network: str, side: int) -> str:
    """The last layer whose output is a grid, before whatever makes that grid coarser to end with.

    Of vgg19 it is the rectified conv5_4, whose 14 × 14 places Xu et al. look at.
    """
    left = walked(model, network, side).left
    found = None
    for name in blocks(model):
        output = left.get(name)
        if is_grid(output):
            found = name
        elif isinstance(output, Tensor) and output.ndim == 3:  # words of a Transformer, of which no place is one
            found = None
    if found is None:
        raise UserError(f"{network} ends in no grid of places for images of {side} pixels to a side; name a --layer")
    return found


def blocks(model: nn.Module) -> Iterator[str]:
    """The parts of a network that do not pool: of a list each one, of a row that ends in a pool the one before it."""
    for name, module in model.named_children():
        inner = list(module.named_children())
        if isinstance(module, nn.ModuleList):
            yield from (f"{name}.{one}" for one, _ in inner)
        elif isinstance(module, nn.Sequential) and len(inner) > 1 and isinstance(inner[-1][1], nn.MaxPool2d):
            yield f"{name}.{inner[-2][0]}"
        elif not isinstance(module, POOLS):
            yield name


def is_grid(output: Any) -> bool:
    """Whether it is 1,features,rows,columns of more places than one; those of a square image are a square."""
    return isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] == output.shape[3] > 1


def trimmed(model: nn.Module, network: str, layer: str, side: int) -> tuple[int, int, int]:
    """The grid of a layer; the parts of the network that it does not depend on are gone."""
    names = [name for name, _ in model.named_modules() if name]
    if layer not in names:
        close = difflib.get_close_matches(layer, names, n=5, cutoff=0.0)
        raise UserError(f"{network} has no layer {layer!r}; names like it are {', '.join(close)}")
    entered, left = walked(model, network, side, layer)
    output = left[layer]
    if not is_grid(output):
        better = usual(model, network, side)
        raise UserError(f"{layer} of {network} gives {described(output)}, and no grid of places, as {better} does")
    passed = {*entered, *(f"{name}.{inner}" for name in left for inner, _ in model.get_submodule(name).named_modules())}
    for name in reversed(names):  # what is inside of others first
        if name not in passed:
            model.set_submodule(name, nn.Identity())
    features, rows, columns = output.shape[1:]
    return rows, columns, features


def weights_of(model: nn.Module) -> State:
    """The weights of a network by name, with room for those that have none yet."""
    if next(model.parameters()).is_meta:
        model.to_empty(device="cpu")
    return {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(COUNTER)}


def described(output: Any) -> str:
    """The form of what a layer gives."""
    if not isinstance(output, Tensor):
        return f"a {type(output).__name__}"
    return f"{' × '.join(f'{length:,}' for length in output.shape[1:])} numbers"
