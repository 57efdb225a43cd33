"""Define the layers of a network, one file per kind."""

from app.layers.activation import ACTIVATIONS, Activation, LeakyRelu, Relu, Relu6, Sigmoid, Tanh, activation_layer
from app.layers.argmax import Argmax
from app.layers.base import Layer, Parameters, Shape
from app.layers.conv2d import Conv2d
from app.layers.flatten import Flatten
from app.layers.linear import Linear
from app.layers.pool import AvgPool, MaxPool
from app.layers.resize import Resize
from app.layers.softmax import Softmax

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Argmax",
    "AvgPool",
    "Conv2d",
    "Flatten",
    "Layer",
    "LeakyRelu",
    "Linear",
    "MaxPool",
    "Parameters",
    "Relu",
    "Relu6",
    "Resize",
    "Shape",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "activation_layer",
]
