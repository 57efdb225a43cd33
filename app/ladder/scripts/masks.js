// Operations on masks: {width, height, data}, where data has a 1 for each pixel in the mask.
"use strict";
const masks = (() => {
  const make = (width, height, holds) =>
    ({ width, height, data: Uint8Array.from({ length: width * height }, (_, at) => holds(at) ? 1 : 0) });
  const combine = (one, holds) => make(one.width, one.height, (at) => holds(at));
  const not = (one) => combine(one, (at) => !one.data[at]);
  const and = (one, other) => combine(one, (at) => one.data[at] && other.data[at]);
  const count = (one) => one.data.reduce((total, value) => total + value, 0);
  const places = (one) => Array.from(one.data.keys()).filter((at) => one.data[at]);

  // Return the mask of the outermost pixels, a frame that is ``wide`` pixels wide.
  const frame = (width, height, wide) => make(width, height, (at) => {
    const x = at % width, y = Math.floor(at / width);
    return x < wide || y < wide || x >= width - wide || y >= height - wide;
  });

  // Return the frame that counts as background: 4 % of the shorter edge wide.
  const border = (width, height) => frame(width, height, Math.max(1, Math.round(0.04 * Math.min(width, height))));

  // Dilate along one axis: set each pixel around which any of ``size`` pixels in a line is set.
  function dilateAlong({ width, height, data }, size, step, before, behind) {
    const reach = (size - 1) / 2;
    return make(width, height, (at) => {
      const first = Math.min(reach, before(at)), last = Math.min(reach, behind(at));
      for (let i = -first; i <= last; i++) if (data[at + i * step]) return true;
      return false;
    });
  }

  // Dilate by a square of size x size pixels; size is odd.
  function dilate(one, size) {
    const { width, height } = one;
    const wide = dilateAlong(one, size, 1, (at) => at % width, (at) => width - 1 - at % width);
    return dilateAlong(wide, size, width, (at) => Math.floor(at / width), (at) => height - 1 - Math.floor(at / width));
  }

  // Remove specks: keep pixels if most of the 3 x 3 pixels around them are set. Beyond the border its pixels repeat.
  const withoutSpecks = (one) => combine(one, (at) => {
    if (!one.data[at]) return false;
    const x = at % one.width, y = Math.floor(at / one.width);
    let set = 0;
    for (let v = y - 1; v <= y + 1; v++) for (let u = x - 1; u <= x + 1; u++)
      set += one.data[Math.min(Math.max(v, 0), one.height - 1) * one.width + Math.min(Math.max(u, 0), one.width - 1)];
    return set >= 5;
  });

  // Remove lines of up to 7 pixels width, such as seams and creases.
  const withoutLines = (one) => and(one, dilate(not(dilate(not(one), 7)), 9));

  // Return the pixels of the mask that are connected to those at ``starts`` by edges; write ``number`` for them into ``parts``.
  function flood({ width, height, data }, starts, parts, number) {
    const found = starts.filter((at) => data[at] && !parts[at]);
    for (const at of found) parts[at] = number;
    for (let next = 0; next < found.length; next++) {
      const at = found[next], x = at % width;
      const beside = [x > 0 ? at - 1 : -1, x < width - 1 ? at + 1 : -1, at - width, at + width];
      for (const other of beside) if (other >= 0 && other < width * height && data[other] && !parts[other]) {
        parts[other] = number;
        found.push(other);
      }
    }
    return found;
  }

  // Return the part of a mask that is connected to the pixels of the mask ``starts``.
  function joined(one, starts) {
    const parts = new Uint8Array(one.data.length);
    flood(one, places(starts), parts, 1);
    return { ...one, data: parts };
  }

  // Return the connected parts of a mask, each as a list of pixel numbers.
  function partsOf(one) {
    const numbers = new Uint32Array(one.data.length), found = [];
    for (const at of places(one)) if (!numbers[at]) found.push(flood(one, [at], numbers, found.length + 1));
    return found;
  }

  // Keep parts that weigh at least ``least`` times the heaviest part; the weight of parts along the border counts a tenth.
  function heavyParts(one, weights, least) {
    const along = border(one.width, one.height);
    const weighed = partsOf(one).map((part) => {
      const outside = part.filter((at) => along.data[at]).length > 0.1 * part.length;
      return { part, weight: part.reduce((total, at) => total + weights[at], 0) * (outside ? 0.1 : 1) };
    });
    const most = weighed.reduce((greatest, { weight }) => Math.max(greatest, weight), 0);
    const kept = new Set(weighed.filter(({ weight }) => weight >= least * most).flatMap(({ part }) => part));
    return combine(one, (at) => kept.has(at));
  }

  // Fill holes: add all pixels that are not connected to the frame outside of the mask.
  const filled = (one) => not(joined(not(one), frame(one.width, one.height, 1)));

  // Return the smallest box around a mask, [left, top, right, bottom]; of an empty mask the whole picture.
  function box(one) {
    let [left, top, right, bottom] = [one.width, one.height, 0, 0];
    for (const at of places(one)) {
      const x = at % one.width, y = Math.floor(at / one.width);
      [left, top, right, bottom] = [Math.min(left, x), Math.min(top, y), Math.max(right, x + 1), Math.max(bottom, y + 1)];
    }
    return right ? [left, top, right, bottom] : [0, 0, one.width, one.height];
  }

  return { make, combine, not, and, count, places, frame, border, dilate, withoutSpecks, withoutLines, joined, heavyParts, filled, box };
})();
