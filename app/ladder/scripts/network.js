// The network in JavaScript. Like the reference, it computes in float64 and returns the output of every layer.
"use strict";
const network = (() => {
  const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

  // Return the value of a float16, given as its 16 bits.
  function fromHalf(bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
    return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
  }

  // Decode base64 of little-endian float16, in which the shipped weights are exact.
  function halvesOf(base64) {
    const bytes = bytesOf(base64);
    return Float64Array.from({ length: bytes.length / 2 }, (_, i) => fromHalf(bytes[2 * i] | bytes[2 * i + 1] << 8));
  }

  // The order of filters is rows, columns, input maps, output maps, so the innermost loop reads and adds neighbours.
  function conv2d({ shape: [channels, height, width], values }, { maps, kernel, weights, bias }) {
    const rows = height - kernel + 1, columns = width - kernel + 1;
    const found = new Float64Array(maps * rows * columns), sums = new Float64Array(maps);
    for (let y = 0; y < rows; y++) for (let x = 0; x < columns; x++) {
      bias ? sums.set(bias) : sums.fill(0);
      for (let p = 0; p < kernel; p++) for (let q = 0; q < kernel; q++) for (let c = 0; c < channels; c++) {
        const value = values[(c * height + y + p) * width + x + q];
        if (value === 0) continue; // nearly half of the values: black pixels, and zeros from ReLU
        const at = ((p * kernel + q) * channels + c) * maps;
        for (let m = 0; m < maps; m++) sums[m] += value * weights[at + m];
      }
      for (let m = 0; m < maps; m++) found[(m * rows + y) * columns + x] = sums[m];
    }
    return { shape: [maps, rows, columns], values: found };
  }

  function avgpool({ shape: [maps, height, width], values }, { window }) {
    const rows = Math.floor(height / window), columns = Math.floor(width / window);
    const found = new Float64Array(maps * rows * columns);
    for (let m = 0; m < maps; m++) for (let y = 0; y < rows; y++) for (let x = 0; x < columns; x++) {
      let sum = 0;
      for (let p = 0; p < window; p++) for (let q = 0; q < window; q++)
        sum += values[(m * height + y * window + p) * width + x * window + q];
      found[(m * rows + y) * columns + x] = sum / window ** 2;
    }
    return { shape: [maps, rows, columns], values: found };
  }

  function linear({ values }, { outputs, weights, bias }) {
    const found = bias ? Float64Array.from(bias) : new Float64Array(outputs);
    values.forEach((value, i) => {
      if (value !== 0) for (let o = 0; o < outputs; o++) found[o] += value * weights[i * outputs + o];
    });
    return { shape: [outputs], values: found };
  }

  const relu = ({ shape, values }) => ({ shape, values: values.map((value) => Math.max(value, 0)) });
  // Return the values in the order of the next layer's weights: rows, columns, maps.
  function flatten({ shape: [maps, height, width], values }) {
    const pixels = height * width;
    return { shape: [values.length], values: values.map((_, at) => values[at % maps * pixels + Math.floor(at / maps)]) };
  }

  const KINDS = { conv2d, avgpool, linear, relu, flatten };

  // Decode the parameters of layers. described: the layers as playground.py writes them.
  const load = (described) => described.map((layer) => ({
    ...layer,
    weights: layer.weights && halvesOf(layer.weights),
    bias: layer.bias && halvesOf(layer.bias),
  }));

  // Return each layer's output, {name, shape, values}; the last has the scores. pixels: 0 to 255, light on black.
  function forward(layers, pixels, shape, scale) {
    let here = { shape, values: Float64Array.from(pixels, (pixel) => pixel * scale) };
    return layers.map((layer) => ({ name: layer.name, ...(here = KINDS[layer.kind](here, layer)) }));
  }

  const argmax = (scores) => scores.reduce((best, score, at) => score > scores[best] ? at : best, 0);

  function softmax(scores) {
    const most = Math.max(...scores);
    const powers = Array.from(scores, (score) => Math.exp(score - most));
    const sum = powers.reduce((total, power) => total + power, 0);
    return powers.map((power) => power / sum);
  }

  // Return the score of a class minus the best other score; if it is negative, the class is not the answer.
  const lead = (scores, label) => scores[label] - Math.max(...scores.filter((_, at) => at !== label));

  // Occlusion: make one square of the picture black after another, and run the network each time. Yield after every run, so
  // that the page can draw. Return for each pixel how much the answer's lead falls, on average over the squares with the
  // pixel, and whether the answer changes without one of these squares.
  function* occlusion(scoresOf, pixels, side, square, step) {
    const scores = scoresOf(pixels), label = argmax(scores), whole = lead(scores, label);
    const falls = new Float64Array(side * side), counts = new Float64Array(side * side);
    const turning = new Uint8Array(side * side);
    for (let top = 0; top + square <= side; top += step) for (let left = 0; left + square <= side; left += step) {
      const places = Array.from({ length: square * square }, (_, i) =>
        (top + Math.floor(i / square)) * side + left + i % square);
      const black = places.every((at) => pixels[at] === 0); // the square changes nothing
      const changed = Float64Array.from(pixels);
      for (const at of places) changed[at] = 0;
      const rest = black ? whole : lead(scoresOf(changed), label);
      for (const at of places) { falls[at] += whole - rest; counts[at]++; if (rest < 0) turning[at] = 1; }
      if (!black) yield;
    }
    return { falls: falls.map((fall, at) => fall / Math.max(counts[at], 1)), turning, label, lead: whole };
  }

  return { bytesOf, fromHalf, load, forward, argmax, softmax, lead, occlusion };
})();
