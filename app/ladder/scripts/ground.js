// Separate the object on a picture from its background, by the rules of predict; app/images/pictures/ground.py explains them.
"use strict";
const ground = (() => {
  const TOLERANCE = 20, DEVIATIONS = 4.5, FEW = 0.03, NOISE = 2, SAME = 1, ROUGH = 4, EVEN = 6;
  const LEAST_PART = 0.002, LEAST_PART_IN_PATTERN = 0.2, BLUR = 2;
  const SHADE = [0.5, 1.6], SLOPE = 6, HUE = 12, NECK = 9, LEAST_WITHOUT_SHADOWS = 0.4;
  const colours = [0, 1, 2];

  const sum = (data, at) => data[3 * at] + data[3 * at + 1] + data[3 * at + 2];
  // Return the greatest difference of a pixel's three colours in two pictures.
  const apart = (one, other, at) => Math.max(...colours.map((c) => Math.abs(one[3 * at + c] - other[3 * at + c])));
  const farFrom = (picture, base) =>
    masks.make(picture.width, picture.height, (at) => apart(picture.data, base, at) > TOLERANCE);

  // Return a quantile as numpy.quantile does, interpolated between the two nearest values.
  function quantile(values, share) {
    const sorted = Float64Array.from(values).sort(), place = share * (sorted.length - 1), below = Math.floor(place);
    return sorted[below] + (place - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
  }

  // Return the mask of shadows: pixels of the background's colour that gentle changes of brightness connect with the border.
  function shadows(mask, soft, base, ring) {
    const { width, height, data } = soft, brightness = new Float64Array(width * height), level = new Float64Array(width * height);
    for (let at = 0; at < width * height; at++) {
      let product = 0, square = 0;
      for (const c of colours) { product += data[3 * at + c] * base[3 * at + c]; square += base[3 * at + c] ** 2; }
      brightness[at] = product / Math.max(square, 1);
      level[at] = brightness[at] * Math.max(...colours.map((c) => base[3 * at + c]));
    }
    const gentle = masks.make(width, height, (at) => {
      const hue = Math.max(...colours.map((c) => Math.abs(data[3 * at + c] - brightness[at] * base[3 * at + c])));
      const up = at >= width ? level[at] - level[at - width] : 0, side = at % width ? level[at] - level[at - 1] : 0;
      return hue < HUE && brightness[at] > SHADE[0] && brightness[at] < SHADE[1] && Math.hypot(up, side) < SLOPE;
    });
    const wide = masks.not(masks.dilate(masks.not(gentle), NECK));
    const starts = masks.combine(wide, (at) => wide.data[at] && !mask.data[at] && ring.data[at]);
    return masks.and(gentle, masks.dilate(masks.joined(wide, starts), NECK));
  }

  // Remove shadows and folds from the mask, unless little would be left, as of objects with soft edges.
  function withoutShadows(mask, soft, base, ring) {
    const shade = shadows(mask, soft, base, ring), left = masks.combine(mask, (at) => mask.data[at] && !shade.data[at]);
    const squares = (one) => masks.places(one).reduce((total, at) => total + apart(soft.data, base, at) ** 2, 0);
    return squares(left) > LEAST_WITHOUT_SHADOWS * squares(mask) ? left : mask;
  }

  // Return whether the outermost pixels have the background's one colour, except for faint noise and objects.
  function isOneColour(mask, picture, soft, base) {
    const edge = masks.frame(picture.width, picture.height, 1), outer = masks.places(edge);
    const [sharp, blurred] = [picture, soft].map(({ data }) => surface.median(outer.map((at) => apart(data, base, at))));
    if (sharp > NOISE || Math.min(sharp, blurred) > SAME) return false;
    const darker = outer.filter((at) => mask.data[at] && sum(picture.data, at) < sum(base, at)), few = FEW * outer.length;
    if (darker.length <= few) return true;
    const shade = shadows(mask, soft, base, edge);
    const objects = masks.withoutLines(masks.combine(mask, (at) => mask.data[at] && !shade.data[at]));
    return darker.filter((at) => !objects.data[at]).length <= few;
  }

  // Return the inverse of a symmetric 3 x 3 matrix, by its cofactors.
  function inverse([a, b, c, , d, e, , , f]) {
    const first = d * f - e * e, second = c * e - b * f, third = b * e - c * d;
    const determinant = a * first + b * second + c * third;
    return [first, second, third, second, a * f - c * c, b * c - a * e, third, b * c - a * e, a * d - b * b]
      .map((value) => value / determinant);
  }

  // Return Mahalanobis distances from the background: colour directions in which the background varies count less.
  function distances(rest, sample) {
    const size = (at) => Math.max(...colours.map((c) => Math.abs(rest[3 * at + c])));
    const ring = masks.places(sample), most = Math.max(3, 3 * surface.median(ring.map(size)));
    const usual = ring.filter((at) => size(at) <= most);
    const covariance = Array.from({ length: 9 }, (_, i) => {
      const a = Math.floor(i / 3), b = i % 3;
      return usual.reduce((total, at) => total + rest[3 * at + a] * rest[3 * at + b], 0) / usual.length + (a === b ? 4 : 0);
    });
    const form = inverse(covariance);
    return Float64Array.from({ length: rest.length / 3 }, (_, at) => {
      let square = 0;
      for (const a of colours) for (const b of colours) square += rest[3 * at + a] * form[3 * a + b] * rest[3 * at + b];
      return Math.sqrt(square);
    });
  }

  // Return the object's mask, and the weight of each pixel; specks weigh nothing.
  function maskAndWeights({ width, height, data }, base, sample) {
    const rest = Float64Array.from(data, (value, i) => value - base[i]), far = distances(rest, sample);
    const mask = masks.make(width, height, (at) => apart(data, base, at) > TOLERANCE && far[at] > DEVIATIONS);
    const solid = masks.withoutSpecks(mask), counted = masks.count(solid) ? solid : mask;
    return [mask, far.map((value, at) => Math.min(value, 30) * counted.data[at])];
  }

  const heavyAndFilled = (mask, weights, least) =>
    masks.count(mask) ? masks.filled(masks.heavyParts(mask, weights, least)) : mask;

  // Separate the object on an RGB picture of bytes. Return {ground: three background colours for each pixel, also under the
  // object; mask; plain, rough: whether nearly all of the border follows the background, or most of it does not}.
  function separate(picture) {
    const { width, height, data } = picture, soft = resample.blur(picture, BLUR);
    const outer = masks.places(masks.frame(width, height, 1)), ring = masks.border(width, height);
    const colour = colours.map((c) => surface.median(outer.map((at) => data[3 * at + c])));
    const flat = Float64Array.from(data, (_, i) => colour[i % 3]), differing = farFrom(picture, flat);
    if (isOneColour(differing, picture, soft, flat)) return { ground: flat, mask: differing, plain: true, rough: false };
    const base = surface.fit(picture);
    const [away, softAway] = [data, soft.data].map((one) => masks.places(ring).map((at) => apart(one, base, at)));
    const plain = quantile(softAway, 0.98) <= EVEN, rough = surface.median(away) > ROUGH;
    const [found, weights] = maskAndWeights(plain ? picture : soft, base, ring);
    const clipped = base.map(resample.clip);
    if (plain) return { ground: clipped, mask: heavyAndFilled(found, weights, LEAST_PART), plain, rough };
    const solid = masks.withoutLines(withoutShadows(found, soft, base, ring));
    const mask = heavyAndFilled(masks.and(solid, farFrom(picture, base)), weights, LEAST_PART_IN_PATTERN);
    return { ground: clipped, mask, plain, rough };
  }

  return { separate };
})();
