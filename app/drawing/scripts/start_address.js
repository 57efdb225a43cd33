// Interactive drawing: for each of 25 filter taps, the fast path's second convolution reads its operand from another start address.
"use strict";
(() => {
  const SIDE = 12, K = 5, OUT = 8, IMAGES = 2;
  const PIXEL = 16, ROW = SIDE * PIXEL, PLANE = SIDE * ROW; // bytes of eight channels of one image: of a pixel, a row, all rows
  const bytes = (value) => value.toLocaleString("en");

  function facts(tap) {
    const p = Math.floor(tap / K), q = tap % K, offset = p * IMAGES * ROW + q * PIXEL;
    return {
      p, q, offset,
      told: [
        `Tap ${tap} is filter row ${p}, column ${q}. Its operand starts ${bytes(p * IMAGES * ROW)} + ${bytes(q * PIXEL)} = ` +
          `${bytes(offset)} bytes after the first tap's: ${p} rows of ${IMAGES} images and ${q} pixels of 16 bytes.`,
        `In the descriptor the start address grows by ${bytes(offset)} / 16 = ${bytes(offset / 16)}. Nothing else changes: the next ` +
          `eight pixels lie ${bytes(ROW)} bytes further on, the next eight channels ${bytes(PLANE * IMAGES)}.`,
        "No thread moves a pixel: all 25 taps multiply the same bytes of shared memory.",
      ],
    };
  }

  function start(section) {
    const stage = section.querySelector(".stage");
    const make = (tag, parent, properties = {}) => parent.appendChild(Object.assign(document.createElement(tag), properties));
    const label = make("label", make("div", stage, { className: "controls" }), { textContent: "filter tap " });
    const input = make("input", label, { type: "range", min: 0, max: K * K - 1, value: 0 });
    const shown = make("output", label);
    const space = "http://www.w3.org/2000/svg";
    const picture = stage.appendChild(document.createElementNS(space, "svg"));
    picture.setAttribute("viewBox", "0 0 640 330");
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", "Pooled map of 12 x 12 pixels, the filter's taps, and the bytes in shared memory");
    const element = (tag, attributes, text = "") => {
      const made = picture.appendChild(document.createElementNS(space, tag));
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      made.textContent = text;
      return made;
    };
    const rect = (x, y, width, height, kind) => element("rect", { x, y, width, height, class: kind });
    element("text", { x: 0, y: 14 }, "pooled map of one image, 12 × 12");
    const cells = Array.from({ length: SIDE * SIDE }, (_, i) => rect(i % SIDE * 17, 22 + Math.floor(i / SIDE) * 17, 16, 16, "cell"));
    element("text", { x: 260, y: 14 }, "filter, 5 × 5");
    const taps = Array.from({ length: K * K }, (_, i) => rect(260 + i % K * 17, 22 + Math.floor(i / K) * 17, 16, 16, "cell"));
    element("text", { x: 0, y: 250 }, "shared memory: rows of two images by turns, 16 bytes a pixel (lit: read by this tap)");
    const memory = Array.from({ length: SIDE * IMAGES * SIDE }, (_, i) =>
      rect(i % (SIDE * IMAGES) * 13 + Math.floor(i / (SIDE * IMAGES) / 6) * 322, 258 + Math.floor(i / (SIDE * IMAGES)) % 6 * 12, 12, 11, "cell"));
    const list = section.querySelector(".facts");

    function draw() {
      const tap = Number(input.value), { p, q, offset, told } = facts(tap);
      shown.textContent = tap;
      const inside = (row, column) => row >= p && row < p + OUT && column >= q && column < q + OUT;
      cells.forEach((cell, i) => {
        const row = Math.floor(i / SIDE), column = i % SIDE;
        cell.setAttribute("class", "cell" + (row === p && column === q ? " here" : inside(row, column) ? " among" : ""));
      });
      taps.forEach((cell, i) => cell.setAttribute("class", "cell" + (i === tap ? " here" : "")));
      memory.forEach((cell, i) => {
        const row = Math.floor(i / (SIDE * IMAGES)), column = i % SIDE;
        cell.setAttribute("class", "cell" + (i * PIXEL === offset ? " here" : inside(row, column) ? " among" : ""));
      });
      list.replaceChildren(...told.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
    }
    input.addEventListener("input", draw);
    draw();
  }

  start(document.getElementById("start-address"));
})();
