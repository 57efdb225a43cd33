// Convert a picture to the network's input, 28 x 28 bytes, light on black, by the steps of predict (see docs/predict.md).
"use strict";
const prepare = (() => {
  const TRIMMED_AT = 256, SHARPENED = 50, LIGHT = 170, DARK = 85, LITTLE = 0.1, EMPTY = 0.005, CUT = 0.02;
  const DECODED = 1024; // predict reduces a large JPEG file, but its longer edge to no less than this

  const luma = (data, at) => 0.299 * data[3 * at] + 0.587 * data[3 * at + 1] + 0.114 * data[3 * at + 2];
  const lumas = ({ width, height, data }) => Float64Array.from({ length: width * height }, (_, at) => luma(data, at));
  const negated = (pixels) => pixels.map((pixel) => 255 - pixel);

  // Reduce a picture to a half, a quarter or an eighth, as predict does when it decodes a large JPEG file.
  function draft(picture) {
    const longest = Math.max(picture.width, picture.height);
    const wanted = [picture.width, picture.height].map((edge) => Math.max(1, Math.floor(edge * DECODED / longest)));
    const most = Math.min(Math.floor(picture.width / wanted[0]), Math.floor(picture.height / wanted[1]));
    return resample.reduce(picture, [8, 4, 2, 1].find((factor) => factor <= Math.max(most, 1)));
  }

  // Return whether the object is darker than its background, by the squared differences of both signs.
  function isDarker(grey, { ground: base, mask }) {
    const levels = Float64Array.from(grey, (_, at) => luma(base, at)), typical = surface.median(levels);
    if (!masks.count(mask)) return typical >= 128;
    let lighter = 0, darker = 0;
    for (const at of masks.places(mask)) {
      const rest = grey[at] - levels[at];
      if (rest > 0) lighter += rest ** 2; else darker += rest ** 2;
    }
    if (typical >= LIGHT) return darker >= LITTLE * lighter;
    return typical >= DARK ? darker >= lighter : lighter < LITTLE * darker;
  }

  // Crop to the box, scale as large as fits in side x side, and sharpen.
  function cropAndScale(picture, box, side) {
    const width = box[2] - box[0], height = box[3] - box[1], scale = Math.min(side / width, side / height);
    const size = [width, height].map((edge) => Math.max(1, resample.rint(edge * scale)));
    return resample.sharpen(resample.resize(picture, ...size, scale < 1 ? "box" : "bicubic", box), 1, SHARPENED);
  }

  // Stretch the levels: the background becomes 0; white, or black if the picture is negated, becomes 255.
  function stretch(grey, found, box, inverted) {
    const { width, height } = found.mask, size = [grey.width, grey.height];
    const plane = (data) => ({ width, height, channels: 1, data });
    const levels = plane(Float64Array.from(found.mask.data, (_, at) => resample.rint(luma(found.ground, at))));
    const under = resample.resize(levels, ...size, "bilinear", box).data;
    const near = found.rough && masks.count(found.mask) ? masks.dilate(found.mask, 3).data : found.mask.data.map(() => 1);
    const inside = resample.resize(plane(Float64Array.from(near)), ...size, "box", box).data;
    return grey.data.map((level, at) => {
      const lifted = inverted ? (under[at] - level) / Math.max(under[at], 1) : (level - under[at]) / Math.max(255 - under[at], 1);
      return resample.rint(resample.clip(255 * inside[at] * lifted));
    });
  }

  // Return what makes the answer doubtful: the background, or the size or position of the object.
  function doubts(found, small) {
    const { width, height } = found.mask, outer = masks.frame(width, height, 1);
    const share = (one, of) => masks.count(one) / of;
    return Object.entries({
      "ground not plain": !found.plain,
      "nearly empty": share(found.mask, width * height) < EMPTY,
      "cut at the border": share(masks.and(found.mask, outer), masks.count(outer)) > CUT,
      "very small": small,
    }).filter(([, holds]) => holds).map(([name]) => name);
  }

  // Prepare a picture that has the network's size already: negate it if its border is light.
  function fitting(picture, invert) {
    const pixels = resample.grey(picture).data, outer = masks.places(masks.frame(picture.width, picture.height, 1));
    const inverted = invert === "yes" || invert === "auto" && surface.median(outer.map((at) => pixels[at])) >= 128;
    return { pixels: inverted ? negated(pixels) : pixels, inverted, doubts: [] };
  }

  // Prepare a picture; return {pixels, inverted, doubts}. picture: RGB bytes, transparency on white. invert: "auto", "yes" or "no".
  function preparePicture(picture, side, invert = "auto") {
    if (picture.width === side && picture.height === side) return fitting(picture, invert);
    const factor = Math.ceil(Math.max(picture.width, picture.height) / TRIMMED_AT);
    const reduced = resample.reduce(picture, factor), found = ground.separate(reduced), box = masks.box(found.mask);
    const ring = masks.places(masks.border(reduced.width, reduced.height));
    const border = [0, 1, 2].map((c) => surface.median(ring.map((at) => found.ground[3 * at + c])));
    const inverted = invert === "yes" || invert === "auto" && isDarker(lumas(reduced), found);
    const most = [0, 0, picture.width, picture.height];
    const content = box.map((at, i) => i < 2 ? factor * at : Math.min(factor * at, most[i]));
    const small = resample.grey(cropAndScale(picture, content, side));
    let level = resample.rint(luma(border, 0)), data = inverted ? negated(small.data) : small.data;
    if (invert === "auto" || level >= 128 === inverted) { data = stretch(small, found, box, inverted); level = 0; }
    else if (inverted) level = 255 - level;
    const pixels = new Uint8Array(side * side).fill(level);
    const top = Math.floor((side - small.height) / 2), left = Math.floor((side - small.width) / 2);
    for (let y = 0; y < small.height; y++) for (let x = 0; x < small.width; x++)
      pixels[(top + y) * side + left + x] = data[y * small.width + x];
    const longest = Math.max(content[2] - content[0], content[3] - content[1]);
    return { pixels, inverted, doubts: doubts(found, longest < side) };
  }

  return { draft, preparePicture };
})();
