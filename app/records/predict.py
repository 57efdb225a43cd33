"""What ``predict`` did."""

from typing import Annotated, Literal, TypedDict

from app.records.parts import Amount, Count, Positive, Precision


class Predict(TypedDict):
    """What was classified (`predict --json FILE`); the answers are in `--out`."""

    schema: Literal["lenet5-inference/predict/1"]
    network: str
    precision: Precision
    device: str
    why_cpu: Annotated[str | None, "why auto took the CPU; null if it did not"]
    images: Annotated[Positive, "classified"]
    seconds: Amount
    pictures: Annotated[Count, "files of pictures; arrays are not counted"]
    unreadable: Annotated[Count, "pictures"]
    negated: Annotated[Count, "pictures"]
    animated: Annotated[Count, "pictures of which the first frame is classified"]
    blank: Annotated[Count, "pictures of one colour"]
    brightness: Annotated[Amount, "mean of all pixels, of 255"]
    note: Annotated[str | None, "on the brightness; null if it is usual"]
    written: list[str]
