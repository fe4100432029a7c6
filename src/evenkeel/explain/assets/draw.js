// Numbers as text, and small SVG figures drawn by hand.
(function () {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";

  // Six significant digits without trailing zeros; a true minus sign.
  function format(value, digits = 6) {
    if (typeof value !== "number") return String(value);
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    const size = Math.abs(value);
    if (size === 0) return "0";
    const scientific = size < 1e-4 || size >= 1e6;
    const text = scientific ? value.toExponential(Math.min(digits, 4) - 1) : value.toPrecision(digits);
    const [mantissa, power] = text.split("e");
    const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    const whole = power === undefined ? short : `${short}e${Number(power)}`;
    return whole.replace(/-/g, "−");
  }

  // [0.146, 0.108, …, 0.11]
  function formatList(values, digits = 4, ends = 3) {
    const shown = values.length <= 2 * ends + 2 ? values.map((v) => format(v, digits))
      : [...values.slice(0, ends).map((v) => format(v, digits)), "…", ...values.slice(-ends).map((v) => format(v, digits))];
    return `[${shown.join(", ")}]`;
  }

  function element(name, attributes = {}, children = []) {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...[children].flat());
    return node;
  }

  function html(name, attributes = {}, children = []) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === false || value === undefined || value === null) continue;
      if (key === "text") node.textContent = value;
      else if (key === "html") node.innerHTML = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...[children].flat().filter((child) => child !== null && child !== undefined));
    return node;
  }

  const say = (x, y, text, attributes = {}) => element("text", { x, y, ...attributes }, [text]);

  function figure(width, height, label, children) {
    return element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "figure" }, children);
  }

  // As wide as there is room, so that the type keeps its size on a phone.
  const room = (most) => Math.max(300, Math.min(most, document.querySelector("main").clientWidth - 32));

  function ticks(low, high, most) {
    const raw = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
    const marks = [];
    for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) marks.push(i * step);
    return marks;
  }

  function spanOf(values) {
    const finite = values.filter(Number.isFinite);
    if (!finite.length) return [-1, 1];
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    const margin = high > low ? 0.08 * (high - low) : Math.max(Math.abs(high), 1) * 0.5;
    return [low - margin, high + margin];
  }

  function axis(x, y, [low, high], width, left) {
    const marks = ticks(low, high, Math.max(3, Math.floor(width / 55)));
    const lines = [element("line", { x1: left, x2: left + width, y1: y, y2: y, class: "axis" })];
    // Far from 0 the ticks differ only in late digits.
    const digits = Math.min(12, 4 + Math.max(0, Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low)))));
    for (const mark of marks) {
      lines.push(element("line", { x1: x(mark), x2: x(mark), y1: y, y2: y + 4, class: "axis" }));
      lines.push(say(x(mark), y + 18, format(Number(mark.toPrecision(12)), digits), { class: "tick", "text-anchor": "middle" }));
    }
    return lines;
  }

  // Mean and deviation; a mean that is only rounding noise is 0.
  function moments(values) {
    const finite = values.filter(Number.isFinite);
    const mean = finite.reduce((a, b) => a + b, 0) / finite.length;
    const deviation = Math.sqrt(finite.reduce((a, b) => a + (b - mean) ** 2, 0) / finite.length);
    return [Math.abs(mean) < 1e-12 * deviation ? 0 : mean, deviation];
  }

  // A histogram over the values as dots, with the mean and one standard deviation to each side.
  function distribution(values, label, colour) {
    const [width, height, left, base] = [room(420), 190, 12, 118];
    const finite = values.filter(Number.isFinite);
    if (!finite.length) return figure(width, 60, `${label}: no finite value`, [say(left, 34, "no finite value", { class: "tick" })]);
    const range = spanOf(finite);
    const inner = width - 2 * left;
    const x = (value) => left + ((value - range[0]) / (range[1] - range[0])) * inner;
    const bins = Math.max(9, Math.min(24, Math.ceil(Math.sqrt(finite.length) * 2)));
    const counts = new Array(bins).fill(0);
    for (const value of finite) counts[Math.min(bins - 1, Math.floor(((value - range[0]) / (range[1] - range[0])) * bins))]++;
    const tallest = Math.max(...counts);
    const [mean, deviation] = moments(finite);
    const parts = [];
    const [from, to] = [Math.max(range[0], mean - deviation), Math.min(range[1], mean + deviation)];
    parts.push(element("rect", { x: x(from), width: Math.max(0, x(to) - x(from)), y: 22, height: base - 22, class: "band" }));
    counts.forEach((count, i) => {
      const size = (count / tallest) * (base - 30);
      parts.push(element("rect", { x: left + (i * inner) / bins + 1, width: Math.max(1, inner / bins - 2), y: base - size, height: size, fill: colour, class: "bar" }));
    });
    parts.push(element("line", { x1: x(mean), x2: x(mean), y1: 18, y2: base + 22, class: "mean" }));
    const anchor = x(mean) > width * 0.6 ? "end" : "start";
    parts.push(say(x(mean) + (anchor === "end" ? -5 : 5), 14, `mean ${format(mean, 4)}, std ${format(deviation, 4)}`, { class: "label", "text-anchor": anchor }));
    finite.slice(0, 400).forEach((value, i) => {
      parts.push(element("circle", { cx: x(value), cy: base + 13 + (i % 3) * 4 - 4, r: 3.5, fill: colour, class: "dot" }, [element("title", {}, [format(value)])]));
    });
    return figure(width, height - 22, `${label}: ${finite.length} values, mean ${format(mean, 4)}, standard deviation ${format(deviation, 4)}`, [...parts, ...axis(x, base + 28, range, inner, left)]);
  }

  // One row of bars around a common zero for each named list.
  function bars(rows, labels) {
    const width = room(720);
    const left = 12;
    const size = 84;
    const most = Math.max(1e-300, ...rows.flatMap((row) => row.values.filter(Number.isFinite).map(Math.abs)));
    const count = rows[0].values.length;
    const step = (width - 2 * left) / count;
    const parts = [];
    rows.forEach((row, r) => {
      const top = r * (size + 26) + 20;
      const zero = top + size / 2;
      parts.push(say(left, top - 6, row.name, { class: "label" }));
      parts.push(element("line", { x1: left, x2: width - left, y1: zero, y2: zero, class: "axis" }));
      row.values.forEach((value, i) => {
        if (!Number.isFinite(value)) return;
        const length = (Math.abs(value) / most) * (size / 2 - 12);
        const x = left + i * step + step * 0.2;
        parts.push(element("rect", { x, width: Math.max(1, step * 0.6), y: value > 0 ? zero - length : zero, height: Math.max(length, 0.5), fill: row.colour }, [
          element("title", {}, [`${labels[i]}: ${format(value)}`]),
        ]));
        if (step >= 44) parts.push(say(x + step * 0.3, value > 0 ? zero - length - 4 : zero + length + 13, format(value, 3), { class: "tick", "text-anchor": "middle" }));
      });
    });
    return figure(width, rows.length * (size + 26) + 8, rows.map((row) => `${row.name}: ${formatList(row.values)}`).join("; "), parts);
  }

  // The same element under several treatments, on one axis each, joined by lines.
  function dumbbells(rows) {
    const [width, left, gap] = [room(720), 16, 74];
    const range = spanOf(rows.flatMap((row) => row.values).concat([0]));
    const inner = width - 2 * left;
    const x = (value) => left + ((value - range[0]) / (range[1] - range[0])) * inner;
    const parts = [element("line", { x1: x(0), x2: x(0), y1: 24, y2: 30 + gap * (rows.length - 1) + 16, class: "mean" })];
    for (let i = 0; i < rows[0].values.length; i++) {
      for (let r = 1; r < rows.length; r++) {
        const [a, b] = [rows[r - 1].values[i], rows[r].values[i]];
        if (Number.isFinite(a) && Number.isFinite(b)) parts.push(element("line", { x1: x(a), x2: x(b), y1: 34 + gap * (r - 1), y2: 34 + gap * r, class: "link" }));
      }
    }
    rows.forEach((row, r) => {
      const y = 34 + gap * r;
      parts.push(element("line", { x1: left, x2: width - left, y1: y, y2: y, class: "axis" }));
      parts.push(say(left, y - 14, row.name, { class: "label halo" }));
      row.values.forEach((value, i) => {
        if (!Number.isFinite(value)) return;
        parts.push(element("circle", { cx: x(value), cy: y, r: 6, fill: row.colour, class: "dot" }, [element("title", {}, [`element ${i}: ${format(value)}`])]));
      });
    });
    const bottom = 34 + gap * (rows.length - 1) + 16;
    return figure(width, bottom + 28, rows.map((row) => `${row.name}: ${formatList(row.values)}`).join("; "), [...parts, ...axis(x, bottom, range, inner, left)]);
  }

  Object.assign(window.evenkeel, { draw: { format, formatList, element, html, say, figure, moments, distribution, bars, dumbbells } });
})();
