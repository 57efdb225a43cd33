"""List the kernels of training, with purpose and origin; app/training/gpu/ launches them."""

from pathlib import Path

from app.base.frozen import Frozen

FOLDER = Path(__file__).parent


class TrainingKernel(Frozen):
    """A training kernel: file train_NAME.cu, entry point train_NAME. system: the earlier systems that had it."""

    name: str
    summary: str
    system: str

    @property
    def entry(self) -> str:
        """Return the name of the kernel's function."""
        return f"train_{self.name}"

    @property
    def source(self) -> str:
        """Return the name of the .cu file."""
        return f"{self.entry}.cu"

    @property
    def path(self) -> Path:
        """Return the path of the .cu file."""
        return FOLDER / self.source


TRAINING_KERNELS = (
    TrainingKernel("gemm", "y = f(αAB + βC + bias) with transposes, sums cut into parts", "mlp"),
    TrainingKernel("conv", "convolution, bias and activation as an implicit product", "lenet5, fa19"),
    TrainingKernel("conv_input", "a convolution's gradient by its input, any stride", "none"),
    TrainingKernel("conv_filters", "a convolution's gradient by its filters, in parts", "none"),
    TrainingKernel("sum_parts", "the parts of a long sum, in a fixed order", "mlp"),
    TrainingKernel("gather", "a batch from the training images, shifted and flipped", "none"),
    TrainingKernel("scale", "enlarged bytes to float32", "fa19, k7, minidnn86"),
    TrainingKernel("dropout", "dropout and its gradient, the mask drawn anew from the image's place", "none"),
    TrainingKernel("activation_gradient", "slopes of ReLU, tanh and sigmoid (a(1-a)) from their outputs", "mlp"),
    TrainingKernel("pool_gradient", "pooling's gradient and the slope before it, gathered by pixel", "lenet5, fa19"),
    TrainingKernel("transpose", "tiled transpose through shared memory: flatten and its gradient", "mlp"),
    TrainingKernel("column_sums", "the biases' gradients as a parallel reduction", "mlp"),
    TrainingKernel("cross_entropy", "row softmax, smoothed cross-entropy, its gradient, correct answers", "mlp"),
    TrainingKernel("sgd", "momentum and L2 over all parameters at once", "mlp"),
    TrainingKernel("adamw", "AdamW and L2 over all parameters at once", "none"),
    TrainingKernel("penalty", "the L2 part of the loss from the weights' squares", "mlp"),
)
