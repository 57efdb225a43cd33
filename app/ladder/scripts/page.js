// The page: choose, draw or open a picture, and show the network's answer and layers.
"use strict";
(() => {
  const told = JSON.parse(document.getElementById("network").textContent);
  const { classes, shape, scale } = told, layers = network.load(told.layers);
  const SIDE = shape[2], CELL = 10; // CELL: pixels of the screen for a pixel of the picture
  const SQUARE = 4, STEP = 2, SLICE_MS = 12; // of occlusion: side and distance of the squares in pixels; longest time without drawing
  const MOST = 4096; // most pixels along an edge of an opened picture
  const find = (id) => document.getElementById(id);
  const make = (tag, parent, properties = {}) => parent.appendChild(Object.assign(document.createElement(tag), properties));
  const decimal = (value) => value.toFixed(2).replace("-", "−");
  const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 2 : 1)} %`;
  const run = (picture) => network.forward(layers, picture, shape, scale);
  const scoresOf = (picture) => Array.from(run(picture).at(-1).values);

  const pixels = new Float64Array(SIDE * SIDE);
  const pen = { x: SIDE >> 1, y: SIDE >> 1, shown: false };
  let truth = null; // the class of the chosen test image; null if the picture is another one

  // Return colours of the style sheet as [red, green, blue].
  const colour = (name) => [1, 3, 5].map((at) =>
    parseInt(getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(at, at + 2), 16));
  const signed = () => ({ positive: colour("--thread"), negative: colour("--neighbour") });

  // Draw each value as a pixel, in a colour that is stronger for larger values. place(i): the position of value i.
  function paint(canvas, width, height, values, place, most, { positive, negative }) {
    Object.assign(canvas, { width, height });
    const image = new ImageData(width, height);
    values.forEach((value, i) => {
      const at = 4 * place(i), [red, green, blue] = value > 0 ? positive : negative;
      image.data.set([red, green, blue, Math.round(255 * Math.min(Math.abs(value) / most, 1))], at);
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  // Draw the network's picture, each pixel as a square. overlay(i): the colour over pixel i, or null.
  function paintPicture(canvas, overlay = () => null) {
    const context = canvas.getContext("2d");
    pixels.forEach((value, at) => {
      const square = [at % SIDE * CELL, Math.floor(at / SIDE) * CELL, CELL, CELL];
      context.fillStyle = `rgb(${value} ${value} ${value})`;
      context.fillRect(...square);
      const above = overlay(at);
      if (above) { context.fillStyle = above; context.fillRect(...square); }
    });
    return context;
  }

  function paintDrawing() {
    const context = paintPicture(find("drawing"));
    if (!pen.shown) return;
    context.strokeStyle = "#ff8c1a";
    context.lineWidth = 2;
    context.strokeRect(pen.x * CELL - 1, pen.y * CELL - 1, CELL + 2, CELL + 2);
  }

  const rows = classes.map((name) => {
    const row = make("tr", find("chances"));
    make("th", row, { scope: "row", textContent: name });
    const chance = make("div", make("td", row), { className: "chance" });
    const bar = make("div", make("div", chance, { className: "track" }), { className: "bar" });
    return { row, bar, share: make("span", chance, { className: "share" }) };
  });

  function showAnswer(scores) {
    const chances = network.softmax(scores), best = network.argmax(scores), empty = pixels.every((pixel) => pixel === 0);
    find("answer").textContent = empty ? "Nothing is drawn yet." : `${classes[best]}, ${percent(chances[best])}`;
    rows.forEach(({ row, bar, share }, at) => {
      row.className = at === best && !empty ? "best" : "";
      bar.style.width = `${100 * chances[at]}%`;
      share.textContent = percent(chances[at]);
    });
    find("said").textContent = truth === null ? "" :
      `It is labelled ${classes[truth]}: the answer is ${truth === best ? "right" : "wrong"}.`;
  }

  // Return how a layer's maps are arranged, with a line between them; each value of a vector is a map.
  function arrange([maps, height = 1, width = 1]) {
    const across = height > 1 ? (maps > 32 ? 16 : 8) : Math.min(maps, maps > 500 ? 64 : maps > 100 ? 32 : 10), gap = height > 1 ? 1 : 0;
    const wide = across * (width + gap) - gap, high = Math.ceil(maps / across) * (height + gap) - gap;
    return { wide, high, place: (i) => {
      const map = Math.floor(i / (height * width)), y = Math.floor(i / width) % height, x = i % width;
      return (Math.floor(map / across) * (height + gap) + y) * wide + map % across * (width + gap) + x;
    } };
  }

  const figures = layers.map(({ name }) => {
    const figure = make("figure", find("layers"), { className: "layer" });
    const caption = make("figcaption", figure);
    make("b", caption, { textContent: name });
    const words = make("span", caption), canvas = make("canvas", figure);
    canvas.setAttribute("role", "img");
    return { words, canvas };
  });

  function showLayers(found) {
    const colours = signed();
    found.forEach(({ name, shape: [maps, height = 1, width = 1], values }, at) => {
      const { words, canvas } = figures[at], { wide, high, place } = arrange([maps, height, width]);
      const least = values.reduce((a, b) => Math.min(a, b)), most = values.reduce((a, b) => Math.max(a, b));
      const zeros = values.reduce((count, value) => count + (value === 0), 0) / values.length;
      const size = height > 1 ? `${maps} maps of ${height} × ${width}` : `${maps} values`;
      words.textContent = `: ${size}, from ${decimal(least)} to ${decimal(most)}; ${percent(zeros)} are 0`;
      canvas.setAttribute("aria-label", `${name}${words.textContent}`);
      canvas.style.maxWidth = `${Math.min(40, wide * (height > 1 ? 0.2 : 1))}rem`;
      paint(canvas, wide, high, values, place, Math.max(most, -least) || 1, colours);
    });
  }

  // Occlusion takes a second, so it computes in slices, and starts again when the picture changes.
  let waiting = 0;
  function explainSoon() {
    clearTimeout(waiting);
    find("decided").textContent = "";
    paintPicture(find("deciding"));
    if (pixels.every((pixel) => pixel === 0)) return;
    waiting = setTimeout(() => explain(network.occlusion(scoresOf, pixels.slice(), SIDE, SQUARE, STEP)), 150);
  }

  function explain(steps) {
    for (const start = performance.now(); performance.now() - start < SLICE_MS;) {
      const { done, value } = steps.next();
      if (done) return showDeciding(value);
    }
    waiting = setTimeout(() => explain(steps));
  }

  function showDeciding({ falls, turning, label, lead }) {
    const most = falls.reduce((greatest, fall) => Math.max(greatest, Math.abs(fall)), 0) || 1, colours = signed();
    const [least, greatest] = [Math.min(...falls), Math.max(...falls)].map((fall) => decimal(-fall));
    const context = paintPicture(find("deciding"), (at) => {
      const [red, green, blue] = falls[at] > 0 ? colours.positive : colours.negative;
      return falls[at] ? `rgb(${red} ${green} ${blue} / ${0.85 * Math.abs(falls[at]) / most})` : null;
    });
    outline(context, turning);
    const pieces = turning.some((turns) => turns) ? "Inside the outline are squares without which the answer is another one."
      : "No single square turns the answer.";
    find("decided").textContent = `The score of ${classes[label]} leads by ${decimal(lead)}. What is made black around a pixel `
      + `changes this by ${greatest} to ${least} on average. ${pieces}`;
  }

  // Draw lines along the border of a set of pixels.
  function outline(context, inside) {
    const holds = (x, y) => x >= 0 && y >= 0 && x < SIDE && y < SIDE && inside[y * SIDE + x] > 0;
    const line = (x, y, to) => { context.moveTo(x * CELL, y * CELL); context.lineTo(to[0] * CELL, to[1] * CELL); };
    context.beginPath();
    for (let y = 0; y <= SIDE; y++) for (let x = 0; x <= SIDE; x++) {
      if (holds(x, y) !== holds(x - 1, y)) line(x, y, [x, y + 1]);
      if (holds(x, y) !== holds(x, y - 1)) line(x, y, [x + 1, y]);
    }
    context.strokeStyle = "#ffffff";
    context.lineWidth = 2;
    context.stroke();
  }

  let asked = false;
  function update() {
    paintDrawing();
    if (asked) return;
    asked = true;
    setTimeout(() => { // once for all changes by a moving pen in the meantime
      asked = false;
      const found = run(pixels);
      showAnswer(Array.from(found.at(-1).values));
      showLayers(found);
      explainSoon();
    });
  }

  // Note that the picture is no longer the chosen test image.
  function forgetSample() {
    truth = null;
    const chosen = document.querySelector('input[name="sample"]:checked');
    if (chosen) chosen.checked = false;
  }

  // Replace the picture. label: the true class of a test image.
  function show(picture, label = null) {
    if (label === null) forgetSample();
    pixels.set(picture);
    truth = label;
    update();
  }

  // Draw or erase the pixels around (x, y) with the pen, whose edge is soft.
  function touch(x, y) {
    const radius = Number(find("width").value), erases = document.querySelector('input[name="pen"]:checked').value === "erase";
    pixels.forEach((value, at) => {
      const away = Math.hypot(at % SIDE + 0.5 - x, Math.floor(at / SIDE) + 0.5 - y);
      const strength = 255 * Math.min(Math.max(radius + 0.5 - away, 0), 1);
      pixels[at] = Math.round(erases ? Math.min(value, 255 - strength) : Math.max(value, strength));
    });
    forgetSample();
  }

  function drawWithPointer(canvas) {
    let last = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width * SIDE, (event.clientY - box.top) / box.height * SIDE];
    };
    const follow = (event) => {
      if (!last) return;
      const [x, y] = place(event), pieces = Math.max(1, Math.ceil(2 * Math.hypot(x - last[0], y - last[1])));
      for (let i = 1; i <= pieces; i++) touch(last[0] + (x - last[0]) * i / pieces, last[1] + (y - last[1]) * i / pieces);
      last = [x, y];
      update();
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 0) return;
      event.preventDefault(); // no selection, no scrolling
      canvas.setPointerCapture?.(event.pointerId);
      last = place(event);
      pen.shown = false;
      follow(event);
    });
    canvas.addEventListener("pointermove", follow);
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { last = null; });
  }

  function drawWithKeys(canvas) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (moves[event.key]) {
        [pen.x, pen.y] = [pen.x, pen.y].map((at, axis) => Math.min(Math.max(at + moves[event.key][axis], 0), SIDE - 1));
      } else if (event.key === " ") touch(pen.x + 0.5, pen.y + 0.5);
      else if (event.key.toLowerCase() === "e") document.querySelector('input[name="pen"]:not(:checked)').checked = true;
      else return;
      event.preventDefault();
      pen.shown = true;
      event.key === " " ? update() : paintDrawing();
    });
    canvas.addEventListener("blur", () => { pen.shown = false; paintDrawing(); });
  }

  function offerSamples(group) {
    const images = network.bytesOf(told.images), size = SIDE * SIDE, white = [255, 255, 255];
    told.labels.forEach((label, number) => {
      const image = images.subarray(number * size, (number + 1) * size), holder = make("label", group);
      const input = make("input", holder, { type: "radio", name: "sample", value: number });
      input.setAttribute("aria-label", `test image ${number}, ${classes[label]}`);
      input.addEventListener("change", () => show(image, label));
      paint(make("canvas", holder), SIDE, SIDE, Array.from(image), (at) => at, 255, { positive: white, negative: white });
    });
  }

  // Return the pixels of a picture file, turned upright, on white where it is transparent.
  async function read(file) {
    const image = await createImageBitmap(file, { colorSpaceConversion: "none" });
    const factor = Math.min(1, MOST / Math.max(image.width, image.height));
    const [width, height] = [image.width, image.height].map((edge) => Math.max(1, Math.round(edge * factor)));
    const context = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, width, height);
    context.drawImage(image, 0, 0, width, height);
    const { data } = context.getImageData(0, 0, width, height);
    const picture = { width, height, channels: 3, data: new Uint8Array(3 * width * height) };
    for (let at = 0; at < width * height; at++) for (let c = 0; c < 3; c++) picture.data[3 * at + c] = data[4 * at + c];
    return file.type === "image/jpeg" ? prepare.draft(picture) : picture;
  }

  async function open() {
    const [file] = find("file").files;
    if (!file) return;
    find("prepared").textContent = `Preparing ${file.name} …`;
    const picture = await read(file).catch(() => null);
    if (file !== find("file").files[0]) return; // another file was chosen in the meantime
    if (picture === null) {
      find("prepared").textContent = `${file.name} is no picture that this browser can read: save it as PNG or JPEG.`;
      return;
    }
    const found = prepare.preparePicture(picture, SIDE, find("invert").value);
    show(found.pixels);
    const notes = [found.inverted ? "negated" : "not negated", ...found.doubts];
    find("prepared").textContent = `${file.name}, ${picture.width} × ${picture.height} pixels: ${notes.join(", ")}.`;
  }

  for (const id of ["desk", "sources", "why", "layers"]) find(id).hidden = false;
  drawWithPointer(find("drawing"));
  drawWithKeys(find("drawing"));
  find("clear").addEventListener("click", () => { show(new Uint8Array(SIDE * SIDE)); });
  find("file").addEventListener("change", open);
  find("invert").addEventListener("change", open);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
  if (find("samples")) {
    offerSamples(find("samples"));
    document.querySelector('input[name="sample"]').click();
  } else update();
  window.playground = { pixels }; // for tests
})();
