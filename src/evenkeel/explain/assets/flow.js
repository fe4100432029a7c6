// A residual stream with the norm before each sublayer, and with the norm after each sum, on the reader's vector.
(function () {
  "use strict";
  const { element, say, figure, html, format, moments, numberLine } = window.evenkeel.draw;
  const { denominatorOf } = window.evenkeel.arithmetic;
  const BLOCKS = 4;

  const rms = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0) / values.length);

  function normalize(values, state, kind) {
    const mean = kind === "rms" ? 0 : values.reduce((a, b) => a + b, 0) / values.length;
    const centred = values.map((value) => value - mean);
    const square = centred.reduce((sum, value) => sum + value * value, 0) / values.length;
    const d = denominatorOf(square, state.eps, state.mode);
    return centred.map((value) => value / d);
  }

  // The sublayer turns neighbouring pairs by a quarter: what it adds is as long as what it reads, and perpendicular to
  // it, as the output of a random layer nearly is. Every other pair turns the other way, or an evenly rising input would
  // turn against its own mean, and the stream of [1, 2, 3, 4] shrink. An odd last element stays.
  const sublayer = (values) => values.map((value, i) => {
    const turn = i % 4 < 2 ? 1 : -1;
    return i % 2 ? turn * values[i - 1] : i + 1 < values.length ? -turn * values[i + 1] : value;
  });
  const add = (a, b) => a.map((value, i) => value + b[i]);

  function pre(x, state, kind) {
    const blocks = [];
    let stream = x;
    for (let k = 1; k <= BLOCKS; k++) {
      const normed = normalize(stream, state, kind);
      const branch = sublayer(normed);
      const next = add(stream, branch);
      blocks.push({ into: rms(stream), normed: rms(normed), branch: rms(branch), sum: rms(next), out: rms(next) });
      stream = next;
    }
    return blocks;
  }

  function post(x, state, kind) {
    const blocks = [];
    let stream = x;
    for (let k = 1; k <= BLOCKS; k++) {
      const branch = sublayer(stream);
      const sum = add(stream, branch);
      const next = normalize(sum, state, kind);
      blocks.push({ into: rms(stream), branch: rms(branch), sum: rms(sum), out: rms(next) });
      stream = next;
    }
    return blocks;
  }

  // Arrow widths grow with the logarithm of the magnitude, within what can be drawn.
  const thickness = (value) => (Number.isFinite(value) && value > 0 ? Math.max(1, Math.min(9, 3 + 2 * Math.log10(value))) : 1);
  const NORM = (name) => name === "rms" ? "RMSNorm" : "LayerNorm";

  // Narrow enough that the two stand side by side on a phone.
  function diagram(blocks, kind, first) {
    const [width, left, right, step, top] = [180, 40, 122, 92, 30];
    const parts = [say(4, 14, `x, rms ${format(blocks[0].into, 4)}`, { class: "label" })];
    const line = (x1, y1, x2, y2, value) => element("line", { x1, y1, x2, y2, "stroke-width": thickness(value), class: "stream" });
    const box = (x, y, text, style) => [element("rect", { x: x - 42, y: y - 11, width: 84, height: 22, rx: 4, class: style }), say(x, y + 4.5, text, { "text-anchor": "middle" })];
    const plus = (x, y) => [element("circle", { cx: x, cy: y, r: 9, class: "plus" }), say(x, y + 4.5, "+", { "text-anchor": "middle" })];
    const note = (x, y, value, anchor = "start") => say(x, y, format(value, 3), { class: "magnitude halo", "text-anchor": anchor });
    blocks.forEach((block, k) => {
      const y = top + k * step;
      const join = y + (first ? 72 : 44);
      parts.push(line(left, y - 8, left, join, block.into), line(left, y, right, y, block.into), line(right, y, right, y + 12, block.into));
      if (first) parts.push(...box(right, y + 19, NORM(kind), "norm"), line(right, y + 30, right, y + 38, block.normed));
      const sub = first ? y + 48 : y + 22;
      parts.push(...box(right, sub, `sublayer ${k + 1}`, "sub"), line(right, sub + 11, right, join, block.branch), line(right, join, left + 10, join, block.branch));
      parts.push(note(right + 6, join + 5, block.branch), ...plus(left, join));
      if (first) parts.push(line(left, join + 9, left, y + step - 8, block.out), note(left - 8, join - 30, block.into, "end"));
      else {
        parts.push(line(left, join + 9, left, join + 14, block.sum), note(left - 12, join + 4, block.sum, "end"));
        parts.push(...box(left + 4, join + 25, NORM(kind), "norm"), line(left, join + 36, left, y + step - 8, block.out));
      }
    });
    const end = top + BLOCKS * step;
    parts.push(say(4, end + 8, `out, rms ${format(blocks[BLOCKS - 1].out, 4)}`, { class: "label" }));
    return figure(width, end + 14, `${first ? "Norm before the sublayer" : "Norm after the sum"}: rms after each block ${blocks.map((block) => format(block.out, 4)).join(", ")}`, parts);
  }

  function drawFlow(x, state) {
    const kind = state.norm === "rms" ? "rms" : "layer";
    const [before, after] = [pre(x, state, kind), post(x, state, kind)];
    const ratio = before[BLOCKS - 1].branch / before[BLOCKS - 1].into;
    const last = (blocks) => format(blocks[BLOCKS - 1].out, 3);
    document.getElementById("flow-lead").textContent =
      `Your ${x.length} numbers through ${BLOCKS} blocks with ${NORM(kind)} (no weight, your ε). Each sublayer turns neighbouring pairs by a quarter: what it adds is as long as what it reads and nearly perpendicular to it, as at initialization. Numbers are root mean squares; lines are as thick as their logarithm.`;
    const parts = [
      ["Pre-norm: the stream grows", before, true, `From ${format(before[0].into, 3)} to ${last(before)}. The last block adds ${format(100 * ratio, 3)} % of what is there; a model needs one more norm at the end.`],
      ["Post-norm: every sum is set back", after, false, `Every block ends at ${last(after)}. The way straight through passes a norm in each block, and so does the gradient.`],
    ];
    document.getElementById("flow-body").replaceChildren(...parts.map(([title, blocks, first, text]) => html("div", {}, [html("h3", { text: title }), diagram(blocks, kind, first), html("p", { class: "small", text })])));
  }

  function drawAgainst(x, state) {
    const [layer, root] = [normalize(x, state, "layer"), normalize(x, state, "rms")];
    const mean = x.reduce((a, b) => a + b, 0) / x.length;
    const share = (100 * mean * mean) / (rms(x) ** 2);
    const most = Math.max(...layer.map((value, i) => Math.abs(value - root[i])));
    document.getElementById("against-lead").textContent = x.every(Number.isFinite)
      ? `The mean's share of the mean square is ${format(share, 3)} %. ${share < 1 ? "There is almost no mean to remove, and the two nearly agree" : "LayerNorm removes it, RMSNorm keeps it"}: they differ by up to ${format(most, 3)}. Same ε, no weight.`
      : "A number is not finite, so there is nothing to compare.";
    document.getElementById("against-body").replaceChildren(numberLine([
      { name: "RMSNorm: x ÷ rms", values: root, colour: "var(--series1)" }, { name: "LayerNorm: the mean removed as well", values: layer, colour: "var(--series2)" },
    ], { most: 620 }));
  }

  // What each row of the number line is, by step; the operation, not its numbers, which the steps have.
  const ROWS = {
    input: () => ["x", "series1"], unit: () => ["÷ scale", "series1"], centred: () => ["− μ", "series3"], stretched: () => ["× α", "series3"],
    normalized: ({ family }) => [{ rms: "÷ rms", minmax: "− min, ÷ range", dyt: "tanh" }[family] || "÷ σ", "series2"],
    output: ({ family }) => [family === "minmax" ? "to the range asked for" : "× γ, + β", "series4"],
  };
  const MESSAGES = {
    moments: "Subtracting the mean moves the numbers to 0; dividing by σ gives them one spread",
    given: "Remembered statistics move and scale the numbers",
    rms: "Dividing by the root mean square gives the numbers one size and keeps their mean's share",
    minmax: "Subtracting the minimum and dividing by the range puts the numbers between 0 and 1",
    image: "Constants of a data set move and scale each colour",
    dyt: "A tanh squashes each number by itself; only here does the shape change",
  };

  function drawLine(p, members, valuesOf) {
    const { family } = p.row;
    const same = (a, b) => a.every((value, i) => Object.is(value, b[i]));
    const rows = [];
    for (const [id, describe] of Object.entries(ROWS)) {
      const values = valuesOf(id);
      if (!values || (id === "output" && same(values, rows[rows.length - 1].values))) continue;
      const [mean, deviation] = moments(values);
      const [name, colour] = describe(p.row);
      const told = Number.isFinite(deviation) ? `mean ${format(mean, 4)}, deviation ${format(deviation, 4)}` : "not finite";
      rows.push({ name, values, colour: `var(--${colour})`, told });
    }
    document.getElementById("line-title").textContent = MESSAGES[p.givenMean && family === "moments" ? "given" : family];
    document.getElementById("line-body").replaceChildren(numberLine(rows, { spread: true }));
  }

  Object.assign(window.evenkeel, { flow: { drawFlow, drawAgainst, drawLine, pre, post, normalize } });
})();
