"""Define each precision in one row, the finest first. All tables of precisions are derived from these rows."""

from app.base.frozen import Frozen


class Precision(Frozen):
    """One precision in which a network can be computed.

    name: its name on the command line and in reports. dtype: type of the multiplication, the ``dtype`` of a problem.
    near_tie: an image's two best scores are a near-tie if they differ by less than this share of the sum of a score's
    absolute terms. colour: CSS class in charts. stored: type of activations in memory between the layers. coarse:
    whether operands are rounded to 11 significant bits before the multiplication. calibrated: whether the weights file
    needs numbers that were calibrated on images, which not every file has. offered: whether the command line accepts
    the name. paired: whether a kernel can compute two convolutions in it. fallback: dtype of layers without a fast
    kernel in it; "" if every layer has one. peers: precision in which other systems are compared with it; "" if none.
    jax: JAX's name for it as a multiplication of float32. cudnn: name of cuDNN's row in ``bench``.
    """

    name: str
    dtype: str
    near_tie: float
    colour: str
    stored: str = "float32"
    coarse: bool = False
    calibrated: bool = False
    offered: bool = True
    paired: bool = False
    fallback: str = ""
    peers: str = ""
    jax: str = ""
    cudnn: str = ""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Return ``dtype``, its fallback, the fallback of that, and so on."""
        return (self.dtype, *(BY_DTYPE[self.fallback].dtypes if self.fallback else ()))

    @property
    def allowed_near_tie_share(self) -> float:
        """Return the share of the images whose labels may differ because of near-ties."""
        return 0.01 if self.coarse else 0.001


# near_tie is a number of roundings: each is 2**-24 in float32 and in split operands, which are as exact, and 2**-11 if
# operands are rounded to 11 bits. A sum of n terms errs by about √n roundings. The longest sums of the shipped networks
# have 800 to 5,400 terms. Measured over the test images in NumPy, logits erred by up to 11 roundings in float32; with
# rounded operands, labels flipped at margins of up to 0.8 roundings. float16 gets twice tf32's share, because numbers
# below its normal range, 2**-14, lose further bits.
# Labels may flip in allowed_near_tie_share of the images, and in at least one. Measured on the shipped networks, none
# of 10,000 flipped in fp32 and fp32x, three in tf32 and fp16. In int8 only the second of two convolutions has bytes,
# rounded by up to 4 * 2**-11 of the greatest: emulated, 10 labels of lenet5 flipped, at margins of up to 35 * 2**-11.
ROWS = (
    Precision("fp64", "float64", 64 * 2.0**-53, "c0", stored="float64", offered=False),
    Precision("fp32", "float32", 64 * 2.0**-24, "c1", peers="fp32", jax="float32", cudnn="cuDNN, TF32 off"),
    Precision("fp32x", "float16x2", 64 * 2.0**-24, "c4", paired=True, fallback="float32", peers="fp32"),
    Precision(
        "tf32", "tfloat32", 4 * 2.0**-11, "c2", coarse=True, peers="tf32", jax="tensorfloat32", cudnn="cuDNN, TF32 on"
    ),
    Precision(
        "fp16",
        "float16",
        8 * 2.0**-11,
        "c3",
        stored="float16",
        coarse=True,
        paired=True,
        fallback="float32",
        peers="fp16",
        jax="default",
        cudnn="cuDNN",
    ),
    Precision(
        "int8",
        "int8",
        48 * 2.0**-11,
        "c7",
        stored="float16",
        coarse=True,
        calibrated=True,
        paired=True,
        fallback="float16",
        peers="fp16",
    ),
)
BY_NAME = {row.name: row for row in ROWS}
BY_DTYPE = {row.dtype: row for row in ROWS}
OFFERED = tuple(row for row in ROWS if row.offered)
PRECISIONS = tuple(row.name for row in OFFERED)  # available on the command line
SINGLE = tuple(row for row in OFFERED if row.peers == row.name)  # precisions in which a kernel serves each layer
OF_PEERS = tuple(row.name for row in SINGLE)  # available in other systems
SHORT = {row.dtype: row.name for row in ROWS} | {"uint8": "u8"}  # short names of types for tables
DTYPES = tuple(BY_DTYPE)
INTEGERS = "int8"  # dtype of 8-bit integers, in which only the second of two convolutions is computed


def storage_dtype(dtype: str) -> str:
    """Return the dtype in memory for a dtype of multiplication, such as float32 for tfloat32; others unchanged."""
    return BY_DTYPE[dtype].stored if dtype in BY_DTYPE else dtype


def epilogue_dtype(dtype: str) -> str:
    """Return the type in which a kernel that multiplies ``dtype`` adds biases and activates: float64 or float32."""
    return "float64" if dtype == "float64" else "float32"
