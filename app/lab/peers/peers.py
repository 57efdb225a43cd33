"""Run ``main.py bench --peers``: time the application and other systems in turn, with the same weights and images."""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from importlib import metadata
from itertools import chain, product
from typing import NamedTuple, cast

import numpy as np
from tqdm import tqdm

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen
from app.base.interrupts import exit_on_interrupt
from app.base.precision import BY_NAME, PRECISIONS
from app.commands.bench import BenchRequest
from app.cuda import device
from app.lab.batch import ONE_PIECE, Batch, load_batch
from app.lab.bench import cudnn
from app.lab.bench.cases import parse_batch_sizes
from app.lab.document import utc_date
from app.lab.peers import jax, torch
from app.lab.peers.rounds import DENSE, OURS, Candidate, Engine, Entrant, check_card_after, measure_in_turn
from app.lab.peers.search import Searches, fastest_settings
from app.lab.peers.text import as_text, search_text, speedups_over_peers
from app.network.graph import Graph, find_network
from app.planning import tuning
from app.records.parts import Card
from app.records.peers import Comparison, Peers, Row, Search
from app.terminal.output import publish_report

DEFAULT_ROUNDS = 7
PEERS = (torch.TORCH, jax.JAX)
ENGINES = (OURS, *PEERS)
EAGER = str(torch.Setting())  # timed beside the fastest settings
NO_TENSORRT = (
    "TensorRT has no row: it is a toolkit of its own, with its own licence. If you have it: python main.py export "
    "--network NETWORK --out model.onnx && trtexec --onnx=model.onnx --shapes=images:10000x1x28x28 --fp16"
)
PACKAGES = {torch.TORCH: torch.PACKAGES, jax.JAX: jax.PACKAGES}
SOFTWARE = tuple(dict.fromkeys(chain(*PACKAGES.values(), ("numpy",))))


class Job(Frozen):
    """What to compare. precisions: of this program. batches: sizes. engines: names; ``ours`` is this program."""

    networks: list[str]
    precisions: list[str]
    batches: list[int]
    engines: list[str]

    @property
    def peer_precisions(self) -> list[str]:
        """Return the peers' precisions to compare with, each once."""
        return list(dict.fromkeys(BY_NAME[own].peers for own in self.precisions))

    def precisions_compared_with(self, precision: str) -> list[str]:
        """Return the precisions of this program to compare with a precision of the peers."""
        return [own for own in self.precisions if OURS in self.engines and BY_NAME[own].peers == precision]


class EngineFactories(NamedTuple):
    """Functions that make engines. ours: makes this program's engine. peers: peer → setting → function that makes it.

    missing: why other peers do not run. check_card: raises an error if the card no longer answers. runs_sparse: returns
    whether kernels for 2:4 sparse weights run a graph in a precision; dense kernels are then timed, too.
    """

    ours: Callable[..., Engine]
    peers: Mapping[str, Mapping[str, Callable[..., Engine]]]
    missing: Sequence[str]
    check_card: Callable[[], object]
    runs_sparse: Callable[[Graph, str], bool] = lambda graph, precision: False

    def our_candidates(self, graph: Graph, precision: str) -> Iterator[Candidate]:
        """Yield this program's engine and, if it runs kernels for sparse weights, an engine with dense kernels."""
        make = partial(self.ours, precision=precision)
        yield Candidate(OURS, "", precision, make)
        if self.runs_sparse(graph, precision):
            yield Candidate(OURS, DENSE, precision, partial(make, sparse=False))


def compare(request: BenchRequest) -> int:
    """Time all engines, or with ``--search`` the peers' untried settings; print and write the document.

    Return 1 if this program's labels were wrong in a comparison, else 0. Raises UserError.
    """
    job = job_from_request(request)
    device.require_gpu("bench")
    with exit_on_interrupt():  # these imports load CuPy
        from cupy.cuda import runtime

        from app.lab.peers.ours import OurEngine, runs_sparse_kernels

    card = device.describe_gpu()
    here = {"arch": card["architecture"], "known": tuning.load(card["name"])}
    rounds = request.rounds or DEFAULT_ROUNDS
    searches = Searches(card["name"], {engine: installed_versions(PACKAGES[engine]) for engine in PEERS})
    with device.translate_gpu_errors(), redirect_output_to_stderr():
        factories = find_engine_factories(job.engines, partial(OurEngine, **here), runtime.deviceSynchronize)
        factories = factories._replace(runs_sparse=partial(runs_sparse_kernels, **here))
        if not (request.search or factories.peers or OURS in job.engines):
            raise UserError(f"--only {request.only}: {'; '.join(factories.missing)}: name {OURS}, too")
        with tqdm(desc="peers", unit=" turns", disable=None) as progress:

            def show_step(what: str) -> None:
                progress.set_postfix_str(what)
                progress.update()

            if request.search:
                settings = searches.to_document([*search_settings(job, factories, searches, show_step)])
            else:
                comparisons = [*compare_all(job, factories, searches, rounds, show_step)]
    if request.search:
        publish_report(settings, search_text, request.output)
        return 0
    document: Peers = {
        "schema": "lenet5-inference/peers/2",
        "date": utc_date(),
        "command": measuring_command(request, rounds),
        "device": cast(Card, card),
        "software": installed_versions(),
        "rounds": rounds,
        "comparisons": comparisons,
        "notes": [*factories.missing, NO_TENSORRT],
    }
    publish_report(document, as_text, request.output)
    return int(any(row["wrong"] for one in comparisons for row in one["rows"]))


def measuring_command(request: BenchRequest, rounds: int) -> str:
    """Return the command line that repeats this measurement. rounds: their number."""
    size = {"batches": request.batches} if request.batches else {"batch": request.batch}
    options = {"network": request.network, **size, "rounds": rounds}
    options |= {"precision": request.precision, "only": request.only}
    return "python main.py bench --peers" + "".join(f" --{name} {value}" for name, value in options.items() if value)


def job_from_request(request: BenchRequest) -> Job:
    """Return what the request asks to compare. Raises UserError for any wrong option or unknown network."""
    job = Job(
        list(dict.fromkeys(request.network.split(","))),
        _parse_names("precision", request.precision, PRECISIONS),
        parse_batch_sizes(request.batch, request.batches),
        _parse_names("only", request.only, ENGINES),
    )
    if request.search and not set(job.engines) & set(PEERS):
        raise UserError(
            f"--only {request.only}: --search tries the settings of {' and '.join(PEERS)}: name one of them"
        )
    for network in job.networks:
        find_network(network)
    return job


def _parse_names(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Return the names in ``text``, split at commas; all ``known`` for None. Raises UserError for an unknown name."""
    names = list(known if text is None else dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            what = "engine" if option == "only" else option
            raise UserError(f"--{option} {text}: unknown {what} '{name}': {choices_hint(name, known)}")
    return names


def find_engine_factories(
    engines: Sequence[str], ours: Callable[..., Engine], check_card: Callable[[], object]
) -> EngineFactories:
    """Return ``ours``, ``check_card``, and factories of the peers in ``engines``, with the reason if one cannot run."""
    found: dict[str, Mapping[str, Callable[..., Engine]]] = {
        torch.TORCH: {str(one): partial(torch.TorchEngine, setting=one) for one in torch.SETTINGS},
        jax.JAX: {name: partial(jax.JaxEngine, in_pieces=pieces) for name, pieces in jax.SETTINGS.items()},
    }
    why = {torch.TORCH: cudnn.why_no_cudnn, jax.JAX: jax.why_no_jax}
    missing = {name: reason for name in PEERS if name in engines and (reason := why[name]()) is not None}
    peers = {name: found[name] for name in PEERS if name in engines and name not in missing}
    reasons = [f"{name} is left out: {reason}" for name, reason in missing.items()]
    return EngineFactories(ours, peers, reasons, check_card)


def search_settings(
    job: Job, factories: EngineFactories, searches: Searches, show_step: Callable[[str], object]
) -> Iterator[Search]:
    """Time briefly each untried setting that may be the fastest; store its times; yield each peer's stored times.

    show_step: called before each try. Raises UserError, after storing the failure, if a setting leaves the card
    unusable.
    """
    for engine, settings in factories.peers.items():  # JAX never frees device memory, so PyTorch comes first
        for batch, precision in product(_load_batches(job, checked=False), job.peer_precisions):
            known = searches.find(batch.graph.network, precision, len(batch.images), engine)
            for setting, make in settings.items():
                if setting in known["ms"] or setting in known["failed"]:
                    continue
                if needless := torch.reason_to_skip_setting(setting, known["ms"], batch.graph):
                    searches.add(known, setting, [], needless)
                    continue
                candidate = Candidate(engine, setting, precision, partial(make, precision=precision))
                show_step(f"{known['network']}, {known['images']:,}: {candidate.title}")
                (entrant,) = _make_entrants([candidate], batch)
                ms = entrant.time_briefly(batch)
                searches.add(known, setting, ms, entrant.reason)
                if entrant.reason == ONE_PIECE:
                    continue
                check_card_after(entrant, (torch.free_compiled_code, factories.check_card), "the other settings")
            yield known


def compare_all(
    job: Job, factories: EngineFactories, searches: Searches, rounds: int, show_step: Callable[[str], object]
) -> Iterator[Comparison]:
    """Time this program, the peers' fastest settings and eager PyTorch in turn; yield a comparison for each batch.

    Raises UserError if a peer leaves the card unusable, after storing its setting as failed.
    """
    for batch in _load_batches(job, checked=True):
        network, images = batch.graph.network, len(batch.images)
        rows: list[Row] = []
        unknown: dict[str, str] = {}
        for precision in job.peer_precisions:
            known = [searches.find(network, precision, images, engine) for engine in factories.peers]
            unknown[precision] = why_fastest_unknown(known, factories.peers)
            chosen = [] if unknown[precision] else fastest_settings(known, factories.peers)
            chosen += [(torch.TORCH, EAGER)] if torch.TORCH in factories.peers else []
            own = job.precisions_compared_with(precision)
            candidates = [one for ours in own for one in factories.our_candidates(batch.graph, ours)]
            for engine, setting in dict.fromkeys(chosen):
                make = partial(factories.peers[engine][setting], precision=precision)
                candidates.append(Candidate(engine, setting, precision, make))
            entrants = _make_entrants(candidates, batch)

            def show_step_of_batch(what: str, where: str = f"{network.name}, {images:,}") -> None:
                show_step(f"{where}: {what}")

            def check_after_peer(peer: Entrant, known: Sequence[Search] = known) -> None:
                engine, setting = peer.candidate.engine, peer.candidate.setting
                search = next(one for one in known if one["engine"] == engine)
                store = partial(searches.add, search, setting, [], peer.reason)
                check_card_after(peer, (factories.check_card,), "the next fastest setting", store)

            measure_in_turn(entrants, batch, rounds, show_step_of_batch, check_after_peer)
            torch.free_compiled_code()
            rows += [entrant.result_row(batch) for entrant in entrants]
        yield {
            "network": network.name,
            "digest": network.digest,
            "images": images,
            "rows": rows,
            "ratios": speedups_over_peers(rows, unknown),
        }


def why_fastest_unknown(known: Sequence[Search], settings: Mapping[str, Collection[str]]) -> str:
    """Return why a peer's fastest setting is unknown, or "". known: stored times per peer. settings: peer → names."""
    if not known:
        return "no peer was timed"
    total = sum(len(settings[one["engine"]]) for one in known)
    tried = sum(len({*settings[one["engine"]]} & {*one["ms"], *one["failed"]}) for one in known)
    if tried == total:
        return "" if fastest_settings(known, settings) else "no setting of a peer runs"
    return f"{tried} of the peers' {total} settings were tried on this card: add --search, then compare again"


def _load_batches(job: Job, *, checked: bool) -> Iterator[Batch]:
    """Yield a batch for each network and each batch size, ascending. checked: whether labels will be checked."""
    for network in job.networks:
        largest = load_batch(network, job.batches[-1], checked=checked)
        yield from map(largest.first_images, job.batches)


def _make_entrants(candidates: Sequence[Candidate], batch: Batch) -> list[Entrant]:
    from app.cuda.memory import pinned_array

    return [Entrant(candidate, pinned_array((len(batch.images),), np.uint8)) for candidate in candidates]


def installed_versions(packages: Iterable[str] = SOFTWARE) -> dict[str, str]:
    """Return package → version for the installed ones among ``packages``."""
    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@contextmanager
def redirect_output_to_stderr() -> Iterator[None]:
    """Send all standard output of the block to standard error, also that of libraries and child processes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
