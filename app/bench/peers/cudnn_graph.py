"""A network in PyTorch whose convolutions are graphs of cuDNN: each with its bias and activation in one kernel."""

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from app.bench.peers.rounds import one_line
from app.bench.peers.torch import Setting, TorchEngine
from app.errors import UserError
from app.network.graph import Graph

PLANS, TIMED = 5, 3  # plans of cuDNN's list that are timed, and runs of each


class CudnnEngine(TorchEngine):
    """Eager PyTorch with cuDNN's graphs for the convolutions. What cuDNN declines, PyTorch computes.

    setting: with channels last, the layout that cuDNN's fused kernels read. device: ``cpu`` for tests.
    """

    def __init__(
        self,
        graph: Graph,
        images: np.ndarray,
        labels: np.ndarray,
        precision: str,
        setting: Setting,
        device: str = "cuda",
    ) -> None:
        if importlib.util.find_spec("cudnn") is None:
            raise UserError("cuDNN's graph API is not installed: pip install nvidia-cudnn-frontend")
        self._fused: list[Convolution] = []
        self._single = precision == "fp32"
        super().__init__(graph, images, labels, precision, None, setting, device)

    def rewritten(self, modules: Iterable[Any]) -> Iterator[Any]:
        """Yield the modules, each convolution joined with the activation behind it."""
        import cudnn

        nn: Any = self._torch.nn
        handle = None if self._device == "cpu" else _handle()

        operations = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
        waiting = [*modules]
        while waiting:
            module = waiting.pop(0)
            if not isinstance(module, nn.Conv2d):
                yield module
                continue
            behind = waiting.pop(0) if waiting and type(waiting[0]) in operations else None
            operation = operations.get(type(behind), "")
            libraries = self._torch, cudnn, handle
            self._fused.append(Convolution(libraries, module, behind, operation, self._single))
            called = nn.Module()
            called.forward = self._fused[-1]
            yield called

    def _classified(self) -> Any:
        labels = super()._classified()
        declined = [convolution.declined for convolution in self._fused]
        if all(declined):
            raise UserError(f"cuDNN's graphs serve no convolution here: {declined[0] if declined else 'there is none'}")
        return labels


class Convolution:
    """One convolution with its bias and activation, as a graph for each shape of images.

    libraries: PyTorch, cuDNN and a handle of cuDNN's, None on the CPU. operation: cuDNN's name of the activation.
    single: no kernel may round float32 before it multiplies. declined: why PyTorch computes it instead, if it does.
    """

    def __init__(
        self, libraries: tuple[Any, Any, Any], module: Any, activation: Any, operation: str, single: bool
    ) -> None:
        self._torch, self._cudnn, self._handle = libraries
        self._module, self._activation, self._operation, self._single = module, activation, operation, single
        bias = [] if module.bias is None else [module.bias.view(1, -1, 1, 1)]
        self._parameters = [module.weight, *bias]
        self._plans: dict[tuple[int, ...], Any] = {}  # shape of images → graph, its tensors, its workspace
        self.declined = ""

    def __call__(self, x: Any) -> Any:
        """Return the activations of images (N, C, H, W): channels last."""
        shape = tuple(x.shape)
        if not self.declined and shape not in self._plans:
            try:
                self._plans[shape] = self._planned(x)
            except Exception as error:  # cuDNN has several types for graphs that it does not serve
                self.declined = one_line(error)
        if self.declined:
            y = self._module(x)
            return y if self._activation is None else self._activation(y)
        graph, tensors, workspace = self._plans[shape]
        y = self._empty(tensors[-1], x)
        self._execute(graph, tensors, [x, *self._parameters, y], workspace)
        return y

    def _empty(self, tensor: Any, like: Any) -> Any:
        layout = self._torch.channels_last
        return self._torch.empty(tuple(tensor.get_dim()), dtype=like.dtype, device=like.device, memory_format=layout)

    def _execute(self, graph: Any, tensors: Sequence[Any], given: Sequence[Any], workspace: Any) -> None:
        if self._handle is not None:
            self._cudnn.set_stream(handle=self._handle, stream=self._torch.cuda.current_stream().cuda_stream)
        graph.execute(dict(zip(tensors, given, strict=True)), workspace, handle=self._handle)

    def _planned(self, x: Any) -> Any:
        """Return the graph for images like x, by the fastest of cuDNN's first plans."""
        cudnn, module = self._cudnn, self._module
        kind = cudnn.data_type.HALF if x.dtype == self._torch.float16 else cudnn.data_type.FLOAT
        wide = {"intermediate_data_type": cudnn.data_type.FLOAT, "compute_data_type": cudnn.data_type.FLOAT}
        graph = cudnn.pygraph(io_data_type=kind, handle=self._handle, **wide)
        images, filters, *bias = (_described(graph, tensor) for tensor in (x, *self._parameters))
        sizes = {name: list(getattr(module, name)) for name in ("padding", "stride", "dilation")}
        y = graph.conv_fprop(image=images, weight=filters, **sizes)
        for tensor in bias:
            y = graph.bias(input=y, bias=tensor)
        if self._operation:
            y = getattr(graph, self._operation)(input=y)
        y.set_output(True).set_data_type(kind)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        if self._single:
            notes = cudnn.numerical_note
            graph.deselect_numeric_notes([notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS])
        graph.check_support()
        return self._fastest(graph, [images, filters, *bias, y], x)

    def _fastest(self, graph: Any, tensors: Sequence[Any], x: Any) -> Any:
        times: dict[int, float] = {}
        reason: Exception = UserError("cuDNN has no plan")
        given = [x, *self._parameters, self._empty(tensors[-1], x)]
        for index in range(min(graph.get_execution_plan_count(), PLANS)):
            try:
                graph.build_plan_at_index(index)
                workspace = self._workspace(graph, x)
                times[index] = min(self._ms(graph, tensors, given, workspace) for _ in range(TIMED))
            except Exception as error:  # a plan that does not serve this card or precision
                reason = error
        if not times:
            raise reason
        graph.build_plan_at_index(min(times, key=lambda index: times[index]))
        return graph, tensors, self._workspace(graph, x)

    def _workspace(self, graph: Any, x: Any) -> Any:
        return self._torch.empty(max(graph.get_workspace_size(), 1), dtype=self._torch.uint8, device=x.device)

    def _ms(self, *given: Any) -> float:
        if self._handle is None:
            self._execute(*given)
            return 0.0
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._execute(*given)
        end.record()
        end.synchronize()
        ms: float = start.elapsed_time(end)
        return ms


@cache
def _handle() -> Any:
    import cudnn

    return cudnn.create_handle()


def _described(graph: Any, tensor: Any) -> Any:
    """Return cuDNN's description of a tensor (N, C, H, W) in memory order N, H, W, C."""
    _, channels, height, width = shape = list(tensor.shape)
    return graph.tensor(dim=shape, stride=[channels * height * width, 1, width * channels, channels])
