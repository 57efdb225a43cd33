"""``main.py export``: write a network and its weights for other systems."""

from app.commands.options.export import ExportRequest
from app.errors import UserError, suggestion
from app.files.checks import BadValueError
from app.files.writing import replacing
from app.interchange.named_arrays import Description
from app.interchange.onnx_export import IMAGES, LABELS, SCORES
from app.interchange.writers import WRITERS, written_name
from app.network.generated import required_weights
from app.network.graph import build, find_network
from app.network.weights import load_weights
from app.output import check_new
from app.text import Column, fields, paragraph, table, terminal_width


def export(request: ExportRequest) -> int:
    """Read, convert, write and tell. Returns 0. Raises UserError; then nothing is written."""
    ending = request.out.suffix.lower()
    if ending not in WRITERS:
        hint = suggestion(ending, WRITERS)
        raise UserError(f"--out {request.out} has no known ending: let it end with one of {', '.join(WRITERS)}{hint}")
    check_new(request.out, request.overwrite)
    if request.file is None and request.network is None:
        raise UserError("nothing to export is named: name a weights file, or a network with --network")
    asked = None if request.network is None else find_network(request.network)
    weights = required_weights(str(request.network), "FILE") if request.file is None else load_weights(request.file)
    graph = build(asked or weights.own_network(), weights)
    try:
        content = WRITERS[ending](Description(graph.network, graph.input_scale, weights.classes), graph.parameters)
    except BadValueError as error:
        raise UserError(f"--out {request.out} {error}") from error
    with replacing(request.out, overwrite=request.overwrite) as temporary:
        temporary.write_bytes(content)
    width = terminal_width()
    columns = [Column(head, left=True) for head in ("array", "in the file", "shape here")]
    rows = [[name, written_name(ending, name), str(array.shape)] for name, array in graph.parameters.items()]
    sizes = ", ".join(map(str, graph.network.input_shape))
    about = {
        "input": f"{IMAGES} (N, {sizes}) uint8" if ending == ".onnx" else "",
        "outputs": f"{SCORES} (N, {graph.classes}) float32, {LABELS} (N) int64" if ending == ".onnx" else "",
        "pixel scale": f"{graph.input_scale:.10g}, for bytes 0 to 255",
        "written": f"{request.out}, {len(content):,} bytes",
    }
    lines = [*paragraph(f"{weights.path}: network {graph.network.name}", width), *table(columns, rows, width)]
    print("\n".join([*lines, *fields([(head, told) for head, told in about.items() if told], width)]))
    return 0
