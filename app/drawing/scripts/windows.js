// Interactive drawing: the input pixels that a product of lenet5's conv1 reads, their addresses and shared-memory banks, in
// three kernels: the im2col matrix of step 8, the implicit GEMM of step 9, and the fast path's windows of eight pixels.
"use strict";
(() => {
  const SIDE = 28, K = 5, OUT = SIDE - K + 1, PIXELS = OUT * OUT;
  const TILE = 16, BN = 16; // pixels of a tile, in steps 8 and 9 for conv1
  const WINDOW_ROW = 6 * 16, WINDOW_HALF = 15 * WINDOW_ROW; // bytes, as in conv_pair.cuh
  const WAYS = ["im2col", "implicit GEMM", "windows of eight"];
  const bytes = (value) => value.toLocaleString("en");

  // Return the pixels, addresses and banks that one kernel (``way``) uses for output pixel n and term k of its sum.
  function read(way, n, k) {
    const h = Math.floor(n / OUT), w = n % OUT, p = Math.floor(k / K), q = k % K;
    const at = (h + p) * SIDE + w + q;
    const lit = { among: new Set(), beside: new Set(), here: new Set([at]) };
    for (let a = 0; a < K; a++) for (let b = 0; b < K; b++) lit.among.add((h + a) * SIDE + w + b);
    const banks = new Array(32).fill(0);
    const told = [`Output pixel ${n} is row ${h}, column ${w}. Term ${k} of its 25 is filter row ${p}, column ${q}: ` +
      `input pixel (${h + p}, ${w + q}), byte ${bytes(at)} of the image.`];
    if (way < 2) {
      const width = way === 0 ? TILE : BN, row = way === 0 ? k % TILE : k, lane = n % width;
      const first = n - lane;
      for (let i = 0; i < width && first + i < PIXELS; i++) {
        const other = first + i;
        lit.beside.add((Math.floor(other / OUT) + p) * SIDE + other % OUT + q);
      }
      for (let t = 0; t < width; t++) banks[(row * width + t) % 32]++;
      const word = row * width + lane;
      told.push(way === 0
        ? `The unroll kernel writes it to row ${k}, column ${n} of a matrix in device memory: for one image byte ` +
          `${bytes((k * PIXELS + n) * 4)}. The matrix holds each pixel up to 25 times, as four bytes.`
        : "Nothing is unrolled: the GEMM gathers the byte from the image itself. " +
          "The matrix exists only as this rule for addresses.");
      told.push(`In shared memory it is pixels[${row}][${lane}]: byte ${bytes(word * 4)}, bank ${word % 32}. ` +
        `A warp reads ${width} neighbouring words at once, one in each of ${width} banks, and each word serves two ` +
        "threads: no conflict.");
    } else {
      const j = Math.min(Math.floor(w / 4), 5), row = h + p;
      const address = row % 2 * WINDOW_HALF + Math.floor(row / 2) * WINDOW_ROW + j * 16;
      for (let i = 0; i < 8; i++) lit.here.add(row * SIDE + 4 * j + i);
      for (let a = 0; a < K; a++) for (let i = 0; i < 8; i++) lit.among.add((h + a) * SIDE + 4 * j + i);
      // A core matrix is eight windows that are neighbours in memory: six of a row of pixels, then two of the row after the next.
      const start = address - j * 16;
      for (let i = 0; i < 8; i++) {
        const r = row + 2 * Math.floor(i / 6), c = 4 * (i % 6);
        for (let x = 0; x < 8 && r < SIDE; x++) lit.beside.add(r * SIDE + c + x);
      }
      for (let word = 0; word < 32; word++) banks[(start / 4 + word) % 32]++;
      told.push(`It lies in window ${j} of its row: columns ${4 * j} to ${4 * j + 7} as float16, 16 bytes at byte ` +
        `${bytes(address)}, banks ${address / 4 % 32} to ${address / 4 % 32 + 3}. The window has all terms of this ` +
        `filter row for output columns ${4 * j} to ${4 * j + 3}: the filters are moved, not the pixels.`);
      told.push(`Tensor cores read eight neighbouring windows as one core matrix, such as bytes ${bytes(start)} to ` +
        `${bytes(start + 127)}: ` + "every bank once. The next filter row but one is the same operand, 96 bytes further on.");
    }
    return { lit, banks, told };
  }

  function start(section) {
    const make = (tag, parent, properties = {}) => parent.appendChild(Object.assign(document.createElement(tag), properties));
    const controls = make("div", section.querySelector(".stage"), { className: "controls" });
    const ways = make("div", controls);
    ways.setAttribute("role", "radiogroup");
    ways.setAttribute("aria-label", "way to read");
    let way = 0;
    WAYS.forEach((name, index) => {
      const label = make("label", ways);
      const input = make("input", label, { type: "radio", name: "windows-way", checked: index === 0 });
      input.addEventListener("change", () => { way = index; draw(); });
      label.append(" ", name);
    });
    const slider = (name, most) => {
      const label = make("label", controls, { textContent: name + " " });
      const input = make("input", label, { type: "range", min: 0, max: most, value: 0 });
      const shown = make("output", label);
      input.addEventListener("input", draw);
      return { input, shown };
    };
    const pixel = slider("output pixel", PIXELS - 1), term = slider("term of the sum", K * K - 1);

    const space = "http://www.w3.org/2000/svg";
    const picture = section.querySelector(".stage").appendChild(document.createElementNS(space, "svg"));
    picture.setAttribute("viewBox", "0 0 640 330");
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", "Input image of 28 x 28 pixels and 32 banks; the text below says what is lit");
    const shape = (x, y, size, kind) => {
      const rect = picture.appendChild(document.createElementNS(space, "rect"));
      for (const [key, value] of Object.entries({ x, y, width: size, height: size, class: kind })) rect.setAttribute(key, value);
      return rect;
    };
    const write = (x, y, text, anchor) => {
      const element = picture.appendChild(document.createElementNS(space, "text"));
      element.setAttribute("x", x); element.setAttribute("y", y); element.textContent = text;
      if (anchor) element.setAttribute("text-anchor", anchor);
      return element;
    };
    write(0, 14, "input image, 28 × 28");
    const cells = Array.from({ length: SIDE * SIDE }, (_, i) => shape(i % SIDE * 11, 22 + Math.floor(i / SIDE) * 11, 10, "cell"));
    write(340, 14, "banks of shared memory: words read at once");
    const boxes = Array.from({ length: 32 }, (_, i) => shape(340 + i % 8 * 36, 22 + Math.floor(i / 8) * 36, 34, "cell"));
    const counts = boxes.map((_, i) => write(357 + i % 8 * 36, 43 + Math.floor(i / 8) * 36, "", "middle"));
    [["here", "this term"], ["among", "all terms of this output"], ["beside", "read by the same instruction"]].forEach(([kind, said], i) => {
      shape(340, 190 + i * 22, 12, `cell ${kind}`);
      write(360, 200 + i * 22, said);
    });
    const list = section.querySelector(".facts");

    function draw() {
      const n = Number(pixel.input.value), k = Number(term.input.value);
      const { lit, banks, told } = read(way, n, k);
      pixel.shown.textContent = n; term.shown.textContent = k;
      cells.forEach((cell, i) => cell.setAttribute("class",
        "cell" + (lit.here.has(i) ? " here" : lit.among.has(i) ? " among" : lit.beside.has(i) ? " beside" : "")));
      boxes.forEach((box, i) => { box.setAttribute("class", "cell" + (banks[i] ? " beside" : "")); counts[i].textContent = banks[i] || ""; });
      list.replaceChildren(...told.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
    }
    draw();
  }

  start(document.getElementById("windows"));
})();
