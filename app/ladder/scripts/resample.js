// Resize, blur and sharpen pictures of bytes with the same bits as Pillow, which predict uses. Some versions of Pillow resize
// columns before rows, and then differ by a few units.
// A picture is {width, height, channels, data}, its pixels row by row, the channels of a pixel together.
"use strict";
const resample = (() => {
  const BITS = 22; // fraction bits of the fixed-point weights for bytes
  const FILTERS = { // reach of each filter in pixels, and its weight at a distance
    box: [0.5, (x) => x > -0.5 && x <= 0.5 ? 1 : 0],
    bilinear: [1, (x) => Math.max(1 - Math.abs(x), 0)],
    bicubic: [2, (x) => {
      const away = Math.abs(x);
      return away < 1 ? (1.5 * away - 2.5) * away * away + 1 : away < 2 ? ((-0.5 * away + 2.5) * away - 4) * away + 2 : 0;
    }],
  };

  // Round to the nearest integer, halves to even, as Python and NumPy do.
  function rint(value) {
    const below = Math.floor(value), over = value - below;
    return over > 0.5 || over === 0.5 && below % 2 !== 0 ? below + 1 : below;
  }

  const clip = (value) => Math.min(Math.max(value, 0), 255);
  const empty = (width, height, channels, kind = Uint8Array) =>
    ({ width, height, channels, data: new kind(width * height * channels) });

  // Return the mean of each square of factor x factor pixels; squares at the right and lower border may be smaller.
  function reduce(picture, factor) {
    if (factor === 1) return picture;
    const { width, height, channels, data } = picture;
    const small = empty(Math.ceil(width / factor), Math.ceil(height / factor), channels);
    for (let y = 0, at = 0; y < small.height; y++) for (let x = 0; x < small.width; x++) {
      const bottom = Math.min((y + 1) * factor, height), right = Math.min((x + 1) * factor, width);
      const count = (bottom - y * factor) * (right - x * factor);
      const multiplier = Math.floor(Math.fround(2 ** 24 / count)); // Pillow multiplies instead of dividing
      for (let c = 0; c < channels; c++, at++) {
        let sum = Math.floor(count / 2);
        for (let v = y * factor; v < bottom; v++) for (let u = x * factor; u < right; u++)
          sum += data[(v * width + u) * channels + c];
        small.data[at] = Math.floor(sum * multiplier / 2 ** 24);
      }
    }
    return small;
  }

  // Return, for each of ``size`` output pixels along an axis, its first input pixel and the weights of its input pixels.
  function weightsOf(length, from, to, size, name) {
    const [reach, filter] = FILTERS[name], scale = (to - from) / size, wide = Math.max(scale, 1);
    return Array.from({ length: size }, (_, at) => {
      const centre = from + (at + 0.5) * scale;
      const first = Math.max(Math.trunc(centre - reach * wide + 0.5), 0);
      const last = Math.min(Math.trunc(centre + reach * wide + 0.5), length);
      const weights = Array.from({ length: last - first }, (_, i) => filter((i + first - centre + 0.5) / wide));
      const sum = weights.reduce((total, weight) => total + weight, 0);
      return { first, weights: weights.map((weight) => sum ? weight / sum : weight) };
    });
  }

  // Return a weight in fixed point, rounded to nearest, halves away from 0.
  const fixed = (weight) => Math.sign(weight) * Math.floor(Math.abs(weight) * 2 ** BITS + 0.5);

  // Resize along one axis, in which neighbours are ``stride`` apart. lines: begin of each line in source and target.
  function resizeAxis(source, target, lines, stride, places) {
    const exact = source instanceof Uint8Array; // for other types the weights are not rounded
    places.forEach(({ first, weights }, at) => {
      const taps = exact ? weights.map(fixed) : weights;
      for (const { from, to } of lines) {
        let sum = exact ? 2 ** (BITS - 1) : 0;
        for (let i = 0; i < taps.length; i++) sum += source[from + (first + i) * stride] * taps[i];
        target[to + at * stride] = exact ? clip(Math.floor(sum / 2 ** BITS)) : sum;
      }
    });
  }

  // Return the part of a picture inside box (left, top, right, bottom) in another size; rows are resized before columns.
  function resize(picture, width, height, filter, box = [0, 0, picture.width, picture.height]) {
    const { channels, data } = picture, kind = data.constructor, [left, top, right, bottom] = box;
    let wide = picture;
    if (width !== picture.width || left || right !== width) {
      wide = empty(width, picture.height, channels, kind);
      const lines = Array.from({ length: picture.height * channels }, (_, i) => {
        const y = Math.floor(i / channels), c = i % channels;
        return { from: y * picture.width * channels + c, to: y * width * channels + c };
      }).filter((_, i) => { // rows that the columns below read
        const y = Math.floor(i / channels), reach = FILTERS[filter][0] * Math.max((bottom - top) / height, 1) + 1;
        return y >= top - reach && y <= bottom + reach;
      });
      resizeAxis(data, wide.data, lines, channels, weightsOf(picture.width, left, right, width, filter));
    }
    if (height === picture.height && !top && bottom === height) return wide;
    const small = empty(width, height, channels, kind);
    const lines = Array.from({ length: width * channels }, (_, i) => ({ from: i, to: i }));
    resizeAxis(wide.data, small.data, lines, width * channels, weightsOf(picture.height, top, bottom, height, filter));
    return small;
  }

  // Return the radius (a fraction) with which three box blurs approximate a Gaussian blur.
  function boxRadius(radius) {
    const square = radius * radius / 3, whole = Math.floor((Math.sqrt(12 * square + 1) - 1) / 2);
    return whole + (2 * whole + 1) * (whole * (whole + 1) - 3 * square) / (6 * (square - (whole + 1) ** 2));
  }

  // Box blur of lines: pixels inside the radius count fully, those at both ends in part. Pixels at the border repeat.
  function boxBlur(data, count, length, stride, start, radius) {
    const whole = Math.floor(radius), inner = Math.floor(Math.fround(2 ** 24 / Math.fround(radius * 2 + 1)));
    const outer = Math.floor((2 ** 24 - (whole * 2 + 1) * inner) / 2);
    const found = new Uint8Array(data.length);
    for (let line = 0; line < count; line++) {
      const first = start(line), pixel = (at) => data[first + Math.min(Math.max(at, 0), length - 1) * stride];
      let sum = 0;
      for (let at = -whole; at <= whole; at++) sum += pixel(at);
      for (let at = 0; at < length; at++) {
        const ends = pixel(at - whole - 1) + pixel(at + whole + 1);
        found[first + at * stride] = Math.floor((sum * inner + ends * outer + 2 ** 23) / 2 ** 24);
        sum += pixel(at + whole + 1) - pixel(at - whole);
      }
    }
    return found;
  }

  function blur({ width, height, channels, data }, radius) {
    const box = Math.fround(boxRadius(radius));
    for (let turn = 0; turn < 3; turn++) data = boxBlur(data, height * channels, width, channels,
      (line) => Math.floor(line / channels) * width * channels + line % channels, box);
    for (let turn = 0; turn < 3; turn++) data = boxBlur(data, width * channels, height, width * channels, (line) => line, box);
    return { width, height, channels, data };
  }

  // Sharpen by an unsharp mask: add ``percent`` % of the difference from the blurred picture.
  function sharpen(picture, radius, percent) {
    const soft = blur(picture, radius).data;
    return { ...picture, data: picture.data.map((value, at) => clip(value + Math.trunc((value - soft[at]) * percent / 100))) };
  }

  const grey = ({ width, height, data }) => ({
    width, height, channels: 1,
    data: Uint8Array.from({ length: width * height }, (_, i) =>
      data[3 * i] * 19595 + data[3 * i + 1] * 38470 + data[3 * i + 2] * 7471 + 0x8000 >> 16),
  });

  return { rint, clip, reduce, resize, blur, sharpen, grey };
})();
