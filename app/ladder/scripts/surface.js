// Fit a smooth surface to a picture's background, as predict does: penalised cubic splines through means of blocks.
"use strict";
const surface = (() => {
  const FITTED = 64, KNOTS = 9, TERMS = KNOTS * KNOTS; // blocks along the longer edge; knots along each edge
  const STIFF_AT_BORDER = 1e-1, STIFF = 1e-4, NEAR = 3, MOST_GROWTH_STEPS = 40;

  function median(values) {
    const sorted = Float64Array.from(values).sort(), half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }

  const steps = (edge, step) => Array.from({ length: Math.ceil(edge / step) }, (_, i) => i * step);

  // Return the mean colours of blocks of step x step pixels.
  function blockMeans({ width, height, data }, step) {
    const columns = steps(width, step), rows = steps(height, step), values = new Float64Array(rows.length * columns.length * 3);
    rows.forEach((y, v) => columns.forEach((x, u) => {
      const bottom = Math.min(y + step, height), right = Math.min(x + step, width), count = (bottom - y) * (right - x);
      for (let i = y; i < bottom; i++) for (let j = x; j < right; j++) for (let c = 0; c < 3; c++)
        values[(v * columns.length + u) * 3 + c] += data[(i * width + j) * 3 + c] / count;
    }));
    return { rows, columns, values };
  }

  // Return the values of all cubic B-splines at a position from 0 to 1.
  const splines = (place) => Float64Array.from({ length: KNOTS }, (_, knot) => {
    const away = Math.abs(place * (KNOTS - 3) + 1 - knot);
    return away < 1 ? 2 / 3 - away ** 2 + away ** 3 / 2 : Math.max(2 - away, 0) ** 3 / 6;
  });

  // The penalty: a quadratic form of the knots that grows with the surface's curvature and, a little, with its slope.
  const bending = (() => {
    const form = (taps) => Array.from({ length: TERMS }, (_, at) => { // squared differences along an axis
      const a = Math.floor(at / KNOTS), b = at % KNOTS;
      let sum = 0;
      for (let row = 0; row + taps.length <= KNOTS; row++) sum += (taps[a - row] ?? 0) * (taps[b - row] ?? 0);
      return sum;
    });
    const level = form([1]), slope = form([-1, 1]), curve = form([1, -2, 1]), found = new Float64Array(TERMS * TERMS);
    for (let i = 0; i < TERMS; i++) for (let j = 0; j < TERMS; j++) {
      const y = Math.floor(i / KNOTS) * KNOTS + Math.floor(j / KNOTS), x = i % KNOTS * KNOTS + j % KNOTS;
      found[i * TERMS + j] = curve[y] * level[x] + 2 * slope[y] * slope[x] + level[y] * curve[x]
        + 1e-3 * (slope[y] * level[x] + level[y] * slope[x]);
    }
    return found;
  })();

  // Solve normal x = right for three columns by Cholesky decomposition, which overwrites normal.
  function solve(normal, right) {
    for (let i = 0; i < TERMS; i++) for (let j = 0; j <= i; j++) {
      let sum = normal[i * TERMS + j];
      for (let k = 0; k < j; k++) sum -= normal[i * TERMS + k] * normal[j * TERMS + k];
      normal[i * TERMS + j] = i === j ? Math.sqrt(sum) : sum / normal[j * TERMS + j];
    }
    const found = Float64Array.from(right);
    const substitute = (i, from, to, factor) => {
      for (let c = 0; c < 3; c++) {
        for (let k = from; k < to; k++) found[i * 3 + c] -= factor(k) * found[k * 3 + c];
        found[i * 3 + c] /= normal[i * TERMS + i];
      }
    };
    for (let i = 0; i < TERMS; i++) substitute(i, 0, i, (k) => normal[i * TERMS + k]);
    for (let i = TERMS - 1; i >= 0; i--) substitute(i, i + 1, TERMS, (k) => normal[k * TERMS + i]);
    return found;
  }

  // Return knots (KNOTS, KNOTS, 3), fitted by least squares to the chosen blocks. At a position only 16 splines are not 0.
  function fitKnots(blocks, chosen, down, across, stiff) {
    const { values, columns } = blocks, normal = bending.map((value) => stiff * value), right = new Float64Array(TERMS * 3);
    for (const at of chosen) {
      const y = down[Math.floor(at / columns.length)], x = across[at % columns.length], terms = [];
      for (let a = 0; a < KNOTS; a++) for (let b = 0; b < KNOTS; b++) if (y[a] * x[b]) terms.push([a * KNOTS + b, y[a] * x[b]]);
      for (const [i, one] of terms) {
        for (const [j, other] of terms) normal[i * TERMS + j] += one * other / chosen.length;
        for (let c = 0; c < 3; c++) right[i * 3 + c] += one * values[at * 3 + c] / chosen.length;
      }
    }
    return solve(normal, right);
  }

  // Return the surface's three colours at every row and column.
  function evaluate(knots, down, across) {
    const found = new Float64Array(down.length * across.length * 3), lines = new Float64Array(KNOTS * 3);
    down.forEach((y, v) => {
      lines.fill(0);
      for (let a = 0; a < KNOTS; a++) if (y[a]) for (let i = 0; i < KNOTS * 3; i++) lines[i] += y[a] * knots[a * KNOTS * 3 + i];
      across.forEach((x, u) => {
        for (let b = 0; b < KNOTS; b++) if (x[b]) for (let c = 0; c < 3; c++)
          found[(v * across.length + u) * 3 + c] += x[b] * lines[b * 3 + c];
      });
    });
    return found;
  }

  // Return the spline values in the middle of each block along an edge.
  const middles = (starts, edge) => starts.map((at, i) => splines((at + (starts[i + 1] ?? edge)) / 2 / edge));

  // Return the background of a picture, three colours for each pixel. The surface is fitted to the border first, then step by
  // step to all connected blocks that are near it.
  function fit(picture) {
    const { width, height } = picture, blocks = blockMeans(picture, Math.ceil(Math.max(width, height) / FITTED));
    const { rows, columns, values } = blocks, ring = masks.border(columns.length, rows.length);
    const down = middles(rows, height), across = middles(columns, width);
    const mean = [0, 1, 2].map((c) => median(masks.places(ring).map((at) => values[at * 3 + c])));
    let chosen = ring, knots, here = values.map((_, i) => mean[i % 3]);
    for (let turn = 0; turn < MOST_GROWTH_STEPS; turn++) {
      const away = Array.from(chosen.data, (_, at) =>
        Math.max(...[0, 1, 2].map((c) => Math.abs(values[at * 3 + c] - here[at * 3 + c]))));
      const most = Math.max(NEAR, 2.5 * median(masks.places(chosen).map((at) => away[at])));
      const around = turn < 3 ? ring : masks.dilate(chosen, 5), before = chosen;
      chosen = masks.combine(around, (at) => around.data[at] && away[at] <= most);
      if (turn > 3 && before.data.every((value, at) => value === chosen.data[at])) break;
      knots = fitKnots(blocks, masks.places(chosen), down, across, turn < 3 ? STIFF_AT_BORDER : STIFF);
      here = evaluate(knots, down, across);
    }
    const pixels = (edge) => Array.from({ length: edge }, (_, at) => splines((at + 0.5) / edge));
    return evaluate(knots, pixels(height), pixels(width));
  }

  return { median, fit };
})();
