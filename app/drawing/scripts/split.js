// Interactive table: a float32 as the sum of two float16, and a product of such sums by three products, as in fp32x.
"use strict";
(() => {
  // Return the nearest float16, ties to even; infinity for numbers that round beyond 65504.
  function half(value) {
    if (!Number.isFinite(value) || value === 0) return value;
    const view = new DataView(new ArrayBuffer(8));
    view.setFloat64(0, value);
    const exponent = Math.max((view.getUint16(0) >> 4 & 2047) - 1023, -14); // below 2^-14, numbers have fewer bits
    const unit = 2 ** (exponent - 10), scaled = value / unit; // exact, because unit is a power of two
    const below = Math.floor(scaled), over = scaled - below;
    const rounded = over > 0.5 || over === 0.5 && below % 2 !== 0 ? below + 1 : below;
    const found = rounded * unit;
    return Math.abs(found) > 65504 ? Math.sign(value) * Infinity : found === 0 ? 0 * Math.sign(value) : found;
  }

  // Return the power of two that scales a number to about 2^14, so that its low half keeps all bits.
  const scale = (value) => value === 0 ? 1 : 2 ** (14 - Math.floor(Math.log2(Math.abs(value))));

  function split(value, factor) {
    const high = half(value * factor);
    return { high: high / factor, low: half(Math.fround(value * factor - high)) / factor };
  }

  // Return the parts of two float32, three products, their sum, and the exact product. scaled: whether to scale a and b first.
  function multiply(a, b, scaled) {
    const x = split(a, scaled ? scale(a) : 1), y = split(b, scaled ? scale(b) : 1);
    const terms = [["low × high", x.low * y.high], ["high × low", x.high * y.low], ["high × high", x.high * y.high]];
    const sum = terms.reduce((total, [, term]) => Math.fround(total + term), 0); // small terms first, in float32
    const exact = a * b; // 24 x 24 bits fit in a double
    return { x, y, terms, sum, exact, single: Math.fround(exact), coarse: Math.fround(x.high * y.high) };
  }

  const digits = (value) => Number.isFinite(value) ? String(Number(value.toPrecision(9))) : String(value);
  const relative = (found, exact) => {
    if (exact === 0) return found === 0 ? "none" : "infinite";
    const error = Math.abs((found - exact) / exact);
    return error === 0 ? "none" : !Number.isFinite(error) ? "infinite" : `2^${Math.log2(error).toFixed(1)}`;
  };

  // Return the rows of the table: [what, value, relative error].
  function rows(a, b, scaled) {
    const { x, y, terms, sum, exact, single, coarse } = multiply(a, b, scaled);
    const halves = (name, value, { high, low }) => [
      [name, digits(value), ""],
      [`${name}: high`, digits(high), relative(high, value)],
      [`${name}: high + low`, `${digits(high)} + ${digits(low)}`, relative(high + low, value)],
    ];
    return [
      ...halves("a", a, x), ...halves("b", b, y),
      ...terms.map(([name, term]) => [name, digits(term), ""]),
      ["sum of the three", digits(sum), relative(sum, exact)],
      ["one product of float16", digits(coarse), relative(coarse, exact)],
      ["product of float32", digits(single), relative(single, exact)],
    ];
  }

  function start(section) {
    const stage = section.querySelector(".stage");
    const body = section.querySelector("tbody");
    const controls = stage.appendChild(Object.assign(document.createElement("div"), { className: "controls" }));
    const inputs = [["a", "3.14159274"], ["b", "0.1"]].map(([name, value]) => {
      const label = controls.appendChild(Object.assign(document.createElement("label"), { textContent: `${name} ` }));
      const input = label.appendChild(Object.assign(document.createElement("input"), { type: "number", step: "any", value }));
      input.addEventListener("input", draw);
      return input;
    });
    const label = controls.appendChild(document.createElement("label"));
    const scaled = label.appendChild(Object.assign(document.createElement("input"), { type: "checkbox" }));
    label.append(" scaled by powers of two first");
    scaled.addEventListener("change", draw);
    const random = controls.appendChild(Object.assign(document.createElement("button"), { type: "button", textContent: "two other numbers" }));
    random.addEventListener("click", () => {
      for (const input of inputs) input.value = digits(Math.fround((Math.random() * 2 - 1) * 2 ** Math.floor(Math.random() * 8 - 4)));
      draw();
    });

    function draw() {
      const [a, b] = inputs.map((input) => Math.fround(Number(input.value)));
      body.replaceChildren(...rows(a, b, scaled.checked).map((cells) => {
        const row = document.createElement("tr");
        cells.forEach((text, place) => row.appendChild(Object.assign(document.createElement(place ? "td" : "th"), { textContent: text })));
        return row;
      }));
    }
    draw();
  }

  start(document.getElementById("split"));
  window.lenet = { half, multiply }; // for tests
})();
